#include "engine/cpu_count.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>
#include <vector>

namespace qevict {
namespace {

// Logical CPUs that this process may run on; empty where the system does not say.
std::vector<int> affinity() {
  std::vector<int> cpus;
#ifdef __linux__
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
#endif
  return cpus;
}

// "MICROSECONDS PERIOD" or "max PERIOD"; 0: no quota.
int read_quota(const std::string& path) {
  std::ifstream file(path);
  double quota = 0.0;
  double period = 0.0;
  if (!(file >> quota >> period) || !(quota > 0.0) || !(period > 0.0)) return 0;
  return static_cast<int>(std::min(std::ceil(quota / period), double{kMaxThreads}));
}

}  // namespace

int physical_cores(std::span<const int> cpus, const std::string& folder) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string name = "cpu" + std::to_string(cpu);
    std::ifstream file(folder + "/" + name + "/topology/thread_siblings_list");
    std::string siblings;
    cores.insert(std::getline(file, siblings) && !siblings.empty() ? siblings : name);
  }
  return static_cast<int>(cores.size());
}

int quota_cpus(const std::string& membership, const std::string& root) {
  std::ifstream file(membership);
  int smallest = 0;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::/")) continue;  // the others are version 1
    std::string group = line.substr(3);
    while (true) {
      while (group.ends_with('/')) group.pop_back();
      const int quota = read_quota(root + group + "/cpu.max");
      if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
      if (group.empty()) break;
      group.erase(group.rfind('/'));
    }
  }
  return smallest;
}

int usable_cpus() {
  const std::vector<int> cpus = affinity();
  const int n = cpus.empty() ? static_cast<int>(std::thread::hardware_concurrency())
                             : static_cast<int>(cpus.size());
  return std::clamp(n, 1, kMaxThreads);
}

int default_threads() {
  const std::vector<int> cpus = affinity();
  int n = cpus.empty() ? static_cast<int>(std::thread::hardware_concurrency())
                       : physical_cores(cpus, "/sys/devices/system/cpu");
  if (const int quota = quota_cpus("/proc/self/cgroup", "/sys/fs/cgroup"); quota > 0) {
    n = std::min(n, quota);
  }
  return std::clamp(n, 1, kMaxThreads);
}

}  // namespace qevict
