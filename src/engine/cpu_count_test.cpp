#include "engine/cpu_count.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace qevict {
namespace {

namespace fs = std::filesystem;

class CpuCount : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("qevict_cpus_" + std::to_string(getpid()));
    fs::create_directories(root_);
  }
  void TearDown() override { fs::remove_all(root_); }

  std::string write(const std::string& name, const std::string& text) const {
    fs::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
    return (root_ / name).string();
  }
  void siblings(int cpu, const std::string& list) const {
    write("cpu" + std::to_string(cpu) + "/topology/thread_siblings_list", list + "\n");
  }
  int cores(const std::vector<int>& cpus) const { return physical_cores(cpus, root_.string()); }
  int quota(const std::string& membership) const {
    return quota_cpus(write("membership", membership), root_.string());
  }

  fs::path root_;
};

TEST_F(CpuCount, CountsSiblingsOnceAndOnlyAllowedCpus) {
  for (const int cpu : {0, 1, 2, 3}) {
    siblings(cpu, std::to_string(cpu) + "," + std::to_string(cpu + 4));
    siblings(cpu + 4, std::to_string(cpu) + "," + std::to_string(cpu + 4));
  }
  EXPECT_EQ(cores({0, 1, 2, 3, 4, 5, 6, 7}), 4);
  EXPECT_EQ(cores({0, 4}), 1);
  EXPECT_EQ(cores({3, 4, 5}), 3);
  EXPECT_EQ(cores({6}), 1);
}

TEST_F(CpuCount, CpusWithoutTopologyAreCores) {
  EXPECT_EQ(cores({0, 1, 2}), 3);
  EXPECT_EQ(cores({}), 0);
}

TEST_F(CpuCount, QuotaIsRoundedUpAndTheSmallestOfTheTree) {
  EXPECT_EQ(quota("0::/a/b\n"), 0) << "no file";
  write("a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 0);
  write("a/b/cpu.max", "350000 100000\n");
  EXPECT_EQ(quota("0::/a/b\n"), 4);
  write("a/cpu.max", "150000 100000\n");
  EXPECT_EQ(quota("3:cpu:/c\n0::/a/b\n"), 2);
  write("cpu.max", "5000 100000\n");
  EXPECT_EQ(quota("0::/\n"), 1);
  EXPECT_EQ(quota("1:cpu:/a\n"), 0) << "version 1 only";
  write("cpu.max", "nonsense\n");
  EXPECT_EQ(quota("0::/\n"), 0);
}

TEST_F(CpuCount, ThisProcessHasAtLeastOneCore) {
  EXPECT_GE(default_threads(), 1);
  EXPECT_LE(default_threads(), kMaxThreads);
}

}  // namespace
}  // namespace qevict
