#include "vectors_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>

#include "engine/engine.h"
#include "engine/run_report.h"
#include "vectors_diagnostics.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

std::string sha256(const std::string& path) {
  const std::string command = "sha256sum -- '" + path + "'";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  char digest[65] = {};
  const std::size_t n = std::fread(digest, 1, 64, pipe);
  pclose(pipe);
  return n == 64 ? std::string(digest) : std::string();
}

std::string find_model(const std::string& digest, const std::vector<std::string>& dirs) {
  static std::map<std::string, std::string> known;  // path -> digest
  for (const std::string& dir : dirs) {
    std::error_code error;
    for (fs::recursive_directory_iterator it(dir, error), end; it != end; it.increment(error)) {
      if (it->path().extension() != ".gguf") continue;
      std::string& d = known[it->path().string()];
      if (d.empty()) d = sha256(it->path().string());
      if (d == digest) return it->path().string();
    }
  }
  return {};
}

// Bounds of the vectors' README: fp32 arithmetic, or integer dot products on quantised weights.
struct Bounds {
  double jaccard_full, jaccard_quantized, identical, score_median, score_p99;
  double full_logits, first_step, last_step, gap;
  bool tiers_identical;  // all sets equal but where a margin is below `margin`
  double margin;
};

Bounds bounds_for(const json& trace) {
  const bool small = trace["model"]["name"].get<std::string>().find("f32") != std::string::npos;
  if (small) return {0.99, 0.995, 0.99, 5e-4, 1e-2, 0.03, 0.3, 1.5, 0.05, true, 3e-4};
  return {0.95, 0.975, 0.45, 6e-3, 6e-2, 0.3, 0.6, 2.0, 0.5, false, 0.0};
}

struct Run {
  std::map<int, std::vector<float>> logits;
  std::vector<TokenId> argmax;
  std::vector<LayerEvent> events;
  CacheStats kv;
};

// As the program's --threads takes it; 0: the engine's own choice.
int threads_from_environment() {
  const char* text = std::getenv("QEVICT_THREADS");
  return text == nullptr ? 0 : std::atoi(text);
}

Result<Run> run_along(Engine& engine, const json& trace, const std::string& policy) {
  const json& config = trace["config"];
  CacheConfig cache;
  cache.policy = policy;
  cache.budget = {KvBudget::Unit::Ratio, config["beta"].get<double>()};
  cache.n_sink = config["S"];
  cache.n_local = config["L"];
  cache.window = config["Omega"];
  cache.quant_share = config["q"];
  cache.quant_bits = config["bits"];
  auto session = engine.create_session(cache);
  if (!session) return std::unexpected(session.error());
  Run run;
  (*session)->set_trace([&](const LayerEvent& e) { run.events.push_back(e); });
  GenerateOptions options;
  options.forced = trace["full"]["ids"].get<std::vector<TokenId>>();
  options.n_predict = config["max_new"];
  const auto banned = config["banned_tokens"].get<std::vector<TokenId>>();
  options.on_logits = [&](int i, std::span<const float> logits) {
    std::vector<float> copy(logits.begin(), logits.end());
    for (const TokenId t : banned) copy[t] = -INFINITY;
    run.argmax.push_back(
        static_cast<TokenId>(std::max_element(copy.begin(), copy.end()) - copy.begin()));
    if (i <= 1 || i == options.n_predict - 1) run.logits[i].assign(logits.begin(), logits.end());
  };
  auto result = (*session)->generate(trace["prompt"]["ids"].get<std::vector<TokenId>>(), options);
  if (!result) return std::unexpected(result.error());
  run.kv = result->kv;
  return run;
}

// Largest difference over the recorded logits of step `key`.
double logit_error(const Run& run, const json& top20, const std::string& key) {
  double worst = 0.0;
  for (const json& entry : top20[key]) {
    const double ours = run.logits.at(std::stoi(key))[entry[0].get<int>()];
    worst = std::max(worst, std::fabs(ours - entry[1].get<double>()));
  }
  return worst;
}

double jaccard(const std::set<int>& a, const std::set<int>& b) {
  std::size_t both = 0;
  for (const int x : a) both += b.count(x);
  const std::size_t either = a.size() + b.size() - both;
  return either == 0 ? 1.0 : static_cast<double>(both) / static_cast<double>(either);
}

std::set<int> windows_of(const std::string& tiers, char tier) {
  std::set<int> windows;
  for (std::size_t i = 0; i < tiers.size(); ++i) {
    if (tiers[i] == tier) windows.insert(static_cast<int>(i));
  }
  return windows;
}

CaseResult verdict(const std::string& name, bool ok, const std::string& detail) {
  return {name, ok ? CaseResult::Outcome::Pass : CaseResult::Outcome::Fail, detail};
}

CaseResult check_full(const Run& run, const json& trace, const Bounds& bounds) {
  const json& full = trace["full"];
  double worst = 0.0;
  for (const auto& [key, value] : full["top20"].items()) {
    worst = std::max(worst, logit_error(run, full["top20"], key));
  }
  int compared = 0, different = 0;
  for (std::size_t i = 0; i < run.argmax.size(); ++i) {
    if (full["argmax_gap"][i].get<double>() <= bounds.gap) continue;
    ++compared;
    different += run.argmax[i] != full["ids"][i].get<int>() ? 1 : 0;
  }
  return verdict("full cache: logits and greedy ids", worst <= bounds.full_logits && different == 0,
                 fmt::format("max |dlogit| {:.4f} (<= {}), {} of {} ids differ", worst,
                             bounds.full_logits, different, compared));
}

CaseResult check_bytes(const Run& run, const json& trace) {
  const int layers = trace["model"]["n_layer"];
  const json& events = trace["teacher"]["events"];
  if (run.events.size() != events.size() * layers) {
    return verdict(
        "event positions and bytes", false,
        fmt::format("{} layer events, expected {}", run.events.size(), events.size() * layers));
  }
  for (const LayerEvent& e : run.events) {
    const json& want = events[e.event];
    const json& bytes = want["bytes_per_layer"];
    if (e.step != want["after_decode_step"] || e.n_tokens != want["n"] ||
        e.bytes.sink != bytes["sink"] || e.bytes.local != bytes["local"] ||
        e.bytes.full != bytes["F"] || e.bytes.quantized != bytes["Q"] ||
        e.bytes.total() != bytes["total"]) {
      return verdict(
          "event positions and bytes", false,
          fmt::format("event {} layer {}: step {} n {} bytes {} {} {} {}", e.event, e.layer, e.step,
                      e.n_tokens, e.bytes.sink, e.bytes.local, e.bytes.full, e.bytes.quantized));
    }
  }
  return verdict("event positions and bytes", true, fmt::format("{} events exact", events.size()));
}

CaseResult check_tiers(const Run& run, const json& trace, const Bounds& bounds) {
  double full = 0.0, quantized = 0.0;
  int identical = 0, wrong = 0;
  for (const LayerEvent& e : run.events) {
    const json& want = trace["teacher"]["events"][e.event];
    const std::string tiers = want["tiers"][e.layer];
    const double f = jaccard({e.full.begin(), e.full.end()}, windows_of(tiers, 'F'));
    const double q = jaccard({e.quantized.begin(), e.quantized.end()}, windows_of(tiers, 'Q'));
    full += f;
    quantized += q;
    const bool same = f == 1.0 && q == 1.0;
    identical += same ? 1 : 0;
    const auto margin = [&](const char* key) {
      const json& m = want[key][e.layer];
      return m.is_null() ? 1.0 : m.get<double>();
    };
    const bool close = margin("margin_F") < bounds.margin || margin("margin_Q") < bounds.margin;
    wrong += !same && !close ? 1 : 0;
  }
  const auto n = static_cast<double>(run.events.size());
  const bool ok = full / n >= bounds.jaccard_full && quantized / n >= bounds.jaccard_quantized &&
                  identical / n >= bounds.identical && (!bounds.tiers_identical || wrong == 0);
  return verdict("tiers along the teacher", ok,
                 fmt::format("mean Jaccard Full {:.4f} Quantized {:.4f}, identical {:.1f} %",
                             full / n, quantized / n, 100.0 * identical / n));
}

CaseResult check_scores(const Run& run, const json& trace, const Bounds& bounds) {
  std::vector<double> errors;
  for (const LayerEvent& e : run.events) {
    const json& want = trace["teacher"]["events"][e.event];
    if (!want.contains("scores")) continue;
    const std::string tiers = want["tiers"][e.layer];
    for (const auto& [window, score] : e.scores) {
      if (tiers[window] == 'E') continue;
      const double expected = want["scores"][e.layer][window];
      errors.push_back(std::fabs(score - expected) / std::max(std::fabs(expected), 1e-30));
    }
  }
  if (errors.empty()) return verdict("window scores", false, "the trace holds no scores");
  const double median = quantile(errors, 0.5), p99 = quantile(errors, 0.99);
  return verdict(
      "window scores", median <= bounds.score_median && p99 <= bounds.score_p99,
      fmt::format("relative error median {:.2g} p99 {:.2g} of {}", median, p99, errors.size()));
}

CaseResult check_teacher_logits(const Run& run, const json& trace, const Bounds& bounds) {
  const json& top20 = trace["teacher"]["top20"];
  const int last = trace["config"]["max_new"].get<int>() - 1;
  const double first = logit_error(run, top20, "1");
  const double end = logit_error(run, top20, std::to_string(last));
  return verdict("qevict logits along the teacher",
                 first <= bounds.first_step && end <= bounds.last_step,
                 fmt::format("max |dlogit| step 1 {:.3f} (<= {}), last {:.3f} (<= {})", first,
                             bounds.first_step, end, bounds.last_step));
}

CaseResult check_promotions(const Run& run, const json& trace) {
  const double want = trace["diagnostics"]["R3"]["promotions"];
  const double got = static_cast<double>(run.kv.promotions);
  const double slack = std::max(0.3 * want, 2.0);
  return verdict("promotions", std::fabs(got - want) <= slack,
                 fmt::format("{} (trace {}, +- {:.1f})", got, want, slack));
}

}  // namespace

std::vector<CaseResult> check_trace(const json& trace, const std::string& file,
                                    const std::vector<std::string>& model_dirs) {
  const std::string digest = trace["model"]["sha256"];
  const std::string path = find_model(digest, model_dirs);
  if (path.empty()) {
    return {{"trace", CaseResult::Outcome::Skip,
             "model " + trace["model"]["name"].get<std::string>() + " is not in --models"}};
  }
  EngineOptions options;
  options.model_path = path;
  const Bounds bounds = bounds_for(trace);
  // A step of the small model is over before a second thread has heard of it.
  options.n_threads = bounds.tiers_identical ? 1 : threads_from_environment();
  auto engine = Engine::load(options);
  if (!engine) return {{"trace", CaseResult::Outcome::Fail, engine.error().message}};
  auto full = run_along(**engine, trace, "full");
  if (!full) return {{"full cache", CaseResult::Outcome::Fail, full.error().message}};
  auto qevict = run_along(**engine, trace, "qevict");
  if (!qevict) return {{"qevict", CaseResult::Outcome::Fail, qevict.error().message}};
  std::vector<CaseResult> results = {check_full(*full, trace, bounds),
                                     check_bytes(*qevict, trace),
                                     check_tiers(*qevict, trace, bounds),
                                     check_scores(*qevict, trace, bounds),
                                     check_teacher_logits(*qevict, trace, bounds),
                                     check_promotions(*qevict, trace)};
  // A large trace takes a minute and a half of one core: only when asked for.
  if (!bounds.tiers_identical && std::getenv("QEVICT_SLOW_VECTORS") == nullptr) return results;
  for (CaseResult& r : check_diagnostics(**engine, trace, !bounds.tiers_identical)) {
    results.push_back(std::move(r));
  }
  return results;
}

}  // namespace qevict::vectors
