#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace qevict {
namespace {

// Made on first use and never destroyed, so that a message during static destruction is safe. It is
// not registered with spdlog: an application that uses spdlog itself sees nothing of it.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* made = new spdlog::logger("qevict", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("qevict: %l: %v");
    made->set_level(spdlog::level::off);
    return made;
  }();
  return *instance;
}

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::Off:
      return spdlog::level::off;
    case LogLevel::Warn:
      return spdlog::level::warn;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Debug:
      return spdlog::level::debug;
  }
  return spdlog::level::off;
}

void write(spdlog::level::level_enum level, std::string_view message) {
  logger().log(level, spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace

void set_log_level(LogLevel level) { logger().set_level(to_spdlog(level)); }

LogLevel log_level() {
  const auto level = logger().level();
  for (const LogLevel l : {LogLevel::Warn, LogLevel::Info, LogLevel::Debug}) {
    if (level == to_spdlog(l)) return l;
  }
  return LogLevel::Off;
}

bool log_enabled(LogLevel level) {
  return level != LogLevel::Off && logger().should_log(to_spdlog(level));
}

void log_warn(std::string_view message) { write(spdlog::level::warn, message); }
void log_info(std::string_view message) { write(spdlog::level::info, message); }
void log_debug(std::string_view message) { write(spdlog::level::debug, message); }

}  // namespace qevict
