#include "base/log.h"

#include <gtest/gtest.h>

namespace qevict {
namespace {

TEST(Log, IsSilentByDefault) {
  EXPECT_EQ(log_level(), LogLevel::Off);
  testing::internal::CaptureStderr();
  log_warn("w");
  log_info("i");
  log_debug("d");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Log, WritesWhatTheLevelAllowsVerbatim) {
  testing::internal::CaptureStderr();
  set_log_level(LogLevel::Info);
  EXPECT_TRUE(log_enabled(LogLevel::Warn));
  EXPECT_FALSE(log_enabled(LogLevel::Debug));
  log_info("braces {} are not a format");
  log_debug("hidden");
  set_log_level(LogLevel::Off);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "qevict: info: braces {} are not a format\n");
}

}  // namespace
}  // namespace qevict
