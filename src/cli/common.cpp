// What several commands do: find and load the model, print the closing summary.
#include <fmt/format.h>

#include <filesystem>
#include <numeric>

#include "cli/commands.h"
#include "cli/json_report.h"
#include "engine/pull.h"

namespace qevict::cli {

Result<std::string> find_model(const std::string& name_or_path) {
  std::string path = resolve_model(name_or_path);
  std::error_code error;
  if (std::filesystem::exists(path, error)) return path;
  const std::string name = name_or_path.empty() ? std::string(kDefaultModel) : name_or_path;
  if (find_known_model(name) != nullptr) {
    return bad_input(
        fmt::format("model {} has not been fetched ({}): run `qevict pull {}` or give -m FILE",
                    name, path, name));
  }
  std::string known;
  for (const KnownModel& model : known_models()) {
    known += (known.empty() ? "" : ", ") + std::string(model.name);
  }
  return bad_input(
      fmt::format("no such model file ({}): give a GGUF file or one of {}", path, known));
}

Result<std::unique_ptr<Engine>> load_engine(const CommonOptions& options, const Console& console) {
  Result<std::string> path = find_model(options.model);
  if (!path) return std::unexpected(path.error());
  EngineOptions engine = options.engine;
  engine.model_path = *path;
  ProgressBar bar(console, "loading the model");
  engine.load_progress = [&bar](float fraction) { bar.update(fraction); };
  auto loaded = Engine::load(engine);
  bar.clear();
  if (loaded && engine.n_threads > (*loaded)->n_threads()) {
    console.warn(fmt::format("{} threads asked for, {} CPUs to run on: using {}", engine.n_threads,
                             (*loaded)->n_threads(), (*loaded)->n_threads()));
  }
  return loaded;
}

void print_summary(const GenerateResult& result, const Console& console) {
  const Timing& t = result.timing;
  const CacheStats& kv = result.kv;
  const std::size_t steps = t.step_ms.size();
  const double decode_ms = std::accumulate(t.step_ms.begin(), t.step_ms.end(), 0.0);
  const std::string speed =
      steps == 0 ? std::string("TPOT -, - tok/s")
                 : fmt::format("TPOT {} median, {:.1f} tok/s", format_ms(t.tpot_median_ms),
                               1000.0 * static_cast<double>(steps) / decode_ms);
  console.note(fmt::format("tokens:  {} prompt, {} generated ({})", result.prompt_tokens,
                           result.tokens.size(), to_string(result.stop_reason)));
  console.note(fmt::format("speed:   TTFT {} (prompt {:.1f} tok/s), {}", format_ms(t.ttft_ms),
                           t.prefill_tok_s, speed));
  const double share = kv.full_cache_bytes > 0 ? 100.0 * static_cast<double>(kv.resident_bytes) /
                                                     static_cast<double>(kv.full_cache_bytes)
                                               : 0.0;
  console.note(fmt::format("cache:   {} held ({:.1f}% of full), peak {}, full KV would be {}{}",
                           format_bytes(kv.resident_bytes), share,
                           format_bytes(kv.peak_resident_bytes), format_bytes(kv.full_cache_bytes),
                           kv.uncompressed ? "; nothing is compressed" : ""));
  console.note(
      fmt::format("windows: {:.1f} full, {:.1f} quantized, {:.1f} evicted per layer; "
                  "{} promotions",
                  per_layer(kv.full_windows, kv), per_layer(kv.quantized_windows, kv),
                  per_layer(kv.evicted_windows, kv), kv.promotions));
}

}  // namespace qevict::cli
