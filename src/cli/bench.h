// What the kinds of `qevict bench` share. A kind measures cells (one policy at one depth) and
// prints a JSON line for each.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/json_report.h"

namespace qevict::cli {

enum class BenchKind : std::uint8_t { Decode, Prefill, Batch };

struct BenchArgs {
  BenchKind kind = BenchKind::Decode;
  CommonOptions common;
  std::vector<std::string> policies;  // none named: full and the default policy
  std::vector<int> depths;            // tokens in front of the measured ones; prompt lengths
  int n = 0;                          // measured steps; repetitions of a prompt
  std::vector<int> batches = {32};
  bool synthetic_cache = false;
};

// One cell's place.
struct BenchCell {
  std::string policy;  // as typed
  CacheConfig config;
  int depth = 0;
  int batch = 1;
};

// Each measures one cell and returns its line.
Result<Json> bench_decode(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                          const Console& console);
Result<Json> bench_prefill(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                           const Console& console);
Result<Json> bench_batch(const BenchArgs& args, const BenchCell& cell, Engine& engine,
                         const Console& console);

using BenchClock = std::chrono::steady_clock;
double ms_since(BenchClock::time_point start);

// Text-like ids: pseudo-random from a fixed seed, no special tokens.
std::vector<TokenId> synthetic_tokens(const Tokenizer& tokenizer, std::size_t n);

// Reads the prompt and returns the milliseconds it took.
Result<double> read_prompt(Session& session, std::span<const TokenId> prompt, int max_new,
                           const Console& console);

// Cache bytes that the session's next step attends to.
std::int64_t attended_bytes(const Session& session);

// The fields that all lines begin or end with.
Json begin_line(const char* kind, const BenchCell& cell, const Engine& engine);
void end_line(const BenchArgs& args, const BenchCell& cell, const Engine& engine, Json& line);
Json quantiles(const std::vector<double>& ms);  // min, median, p95

// What a step must read at least, and how fast that is beside plain reading:
// {"weight_bytes", "kv_bytes", "gb_s", "stream_gb_s", "share"}.
Json roofline(const Engine& engine, double kv_bytes, double step_ms);

// Memory bandwidth of n threads that sum over a buffer larger than the caches, in GB/s: the best of
// three passes. Measured once in a process.
double stream_read_gb_s(int n_threads);

}  // namespace qevict::cli
