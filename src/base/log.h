// Diagnostics on stderr: a small wrapper over spdlog, silent until a frontend raises the level.
//
// Thread safety: all functions may be called from any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace qevict {

enum class LogLevel : std::uint8_t { Off, Warn, Info, Debug };

// The default is Off.
void set_log_level(LogLevel level);
LogLevel log_level();
// True when a message of this level would be written; guards costly formatting.
bool log_enabled(LogLevel level);

void log_warn(std::string_view message);
void log_info(std::string_view message);
void log_debug(std::string_view message);

}  // namespace qevict
