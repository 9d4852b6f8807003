#include "cli/options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <memory>

#include "cli/signals.h"
#include "engine/cpu_count.h"
#include "engine/pull.h"
#include "policies/registry.h"

namespace qevict::cli {
namespace {

constexpr int kMaxInt = std::numeric_limits<int>::max();
constexpr int kMaxBatch = 8192;  // the memory of a prompt's block grows with it

template <typename T>
Status parse_number(std::string_view name, const std::string& text, T& value) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) {
    return bad_input(fmt::format("'{}' ({}): give a number", text, name));
  }
  value = parsed;
  return {};
}

Status parse_bool(std::string_view name, const std::string& text, bool& value) {
  if (text != "true" && text != "false") {
    return bad_input(fmt::format("'{}' ({}): use true or false", text, name));
  }
  value = text == "true";
  return {};
}

template <typename T>
Status assign(Result<T> parsed, T& value) {
  if (!parsed) return std::unexpected(parsed.error());
  value = *parsed;
  return {};
}

Status set_budget(CacheConfig& c, const std::string& t) {
  return assign(KvBudget::parse(t), c.budget);
}
Status set_sinks(CacheConfig& c, const std::string& t) {
  return parse_number("n_sink", t, c.n_sink);
}
Status set_local(CacheConfig& c, const std::string& t) { return parse_local(t, c); }
Status set_window(CacheConfig& c, const std::string& t) {
  return parse_number("window", t, c.window);
}
Status set_share(CacheConfig& c, const std::string& t) {
  return parse_number("quant_share", t, c.quant_share);
}
Status set_bits(CacheConfig& c, const std::string& t) {
  return parse_number("quant_bits", t, c.quant_bits);
}
Status set_ranker(CacheConfig& c, const std::string& t) {
  return assign(Ranker::parse(t), c.ranker);
}
Status set_local_rule(CacheConfig& c, const std::string& t) {
  if (t != "floor" && t != "ceil") {
    return bad_input(fmt::format("'{}' (local_rule): use floor or ceil", t));
  }
  c.local_rule = t == "ceil" ? LocalRule::Ceil : LocalRule::Floor;
  return {};
}
Status set_promotion(CacheConfig& c, const std::string& t) {
  return parse_bool("promotion", t, c.promotion);
}
Status set_accessible(CacheConfig& c, const std::string& t) {
  return parse_bool("quantized_accessible", t, c.quantized_accessible);
}
Status set_strict(CacheConfig& c, const std::string& t) {
  return parse_bool("strict_budget", t, c.strict_budget);
}
Status set_attention(CacheConfig& c, const std::string& t) {
  if (t != "fused" && t != "materialised") {
    return bad_input(fmt::format("'{}' (--attention): use fused or materialised", t));
  }
  c.fused_attention = t == "fused";
  return {};
}

constexpr CacheOption kCacheOptions[] = {
    {"kv_budget", "--kv-budget", "BUDGET",
     "cache size: a share of the full cache (0.2, 20%), bytes (512MiB) or tokens (4096tok) [0.2]",
     set_budget, true},
    {"n_sink", "--sinks", "N", "first tokens, kept in fp16 for ever [5]", set_sinks},
    {"n_local", "--local", "N|P%", "newest tokens, kept in fp16; P% of the budget in tokens [32]",
     set_local},
    {"local_rule", "--local-rule", "floor|ceil", "when a window leaves the local zone [floor]",
     set_local_rule},
    {"window", "--window", "N", "tokens that are ranked and moved together, 1 to 32 [8]",
     set_window},
    {"quant_share", "--quant-share", "X", "share of the history's bytes for Quantized [0.7]",
     set_share},
    {"quant_bits", "--quant-bits", "2|3|4|8", "bits of a quantised value [2]", set_bits},
    {"ranker", "--ranker", "RANKER", "mass, decay:G, pnorm:P or key_l2 [mass]", set_ranker},
    {"promotion", "--no-promotion", "", "Quantized windows never return to Full", set_promotion},
    {"quantized_accessible", "--quantized-inaccessible", "",
     "ablation: Quantized windows are not attended to", set_accessible},
    {"strict_budget", "--strict-budget", "", "also reserve what waits for the next routing",
     set_strict, true},
    {"attention", "--attention", "fused|materialised",
     "materialised: scores in memory over a dense copy of the cache, for comparison [fused]",
     set_attention, true},
};

// What a flag sets its key to: the two that take something away name it so.
std::string flag_value(const CacheOption& option) {
  return option.key == "strict_budget" ? "true" : "false";
}

// "--kv-budget" -> "QEVICT_KV_BUDGET"
std::string environment_name(std::string_view flag) {
  std::string name = "QEVICT_" + std::string(flag.substr(2));
  for (char& c : name) {
    c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return name;
}

// The keys that a policy's line in the registry names: "window=8 ranker=..." -> window, ranker.
std::vector<std::string_view> policy_keys(const PolicySpec& policy) {
  std::vector<std::string_view> keys;
  const std::string_view text = policy.parameters;
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = text.find(' ', begin);
    if (end == std::string_view::npos) end = text.size();
    const std::string_view word = text.substr(begin, end - begin);
    if (const std::size_t equals = word.find('='); equals != std::string_view::npos && equals > 0) {
      keys.push_back(word.substr(0, equals));
    }
    begin = end + 1;
  }
  return keys;
}

Status apply_policy_parameter(const PolicySpec& policy, const std::string& item,
                              CacheConfig& config) {
  const std::vector<std::string_view> known = policy_keys(policy);
  const std::size_t equals = item.find('=');
  const std::string key = item.substr(0, equals);
  const auto row = std::ranges::find(kCacheOptions, key, &CacheOption::key);
  // A policy that reads parameters of its own may mean something else by an option's name.
  const bool own = policy.check_parameters != nullptr;
  const bool option = row != std::end(kCacheOptions) && (!own || row->every_policy);
  if (std::ranges::find(known, key) == known.end() && !(own && option)) {
    return bad_input(
        known.empty()
            ? fmt::format("policy {} takes no parameters (--policy): drop '{}'", policy.name, item)
            : fmt::format("policy {} has no parameter '{}' (--policy): use {}", policy.name, key,
                          fmt::join(known, ", ")));
  }
  if (equals == std::string::npos) {
    return bad_input(
        fmt::format("parameter '{}' has no value (--policy): write {}=VALUE", key, key));
  }
  const std::string value = item.substr(equals + 1);
  if (option) return row->set(config, value);
  config.policy_parameters.push_back({key, value});
  return {};
}

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_option_opts(const CLI::Option* option) const override {
    const std::string type = option->get_type_name();
    return type.empty() ? std::string() : " " + type;
  }
};

}  // namespace

std::span<const CacheOption> cache_options() { return kCacheOptions; }

void add_model_options(CLI::App& app, CommonOptions& o) {
  const std::string group = "Model";
  app.add_option("-m,--model", o.model,
                 fmt::format("GGUF file, or a name that `qevict pull` knows [{}]", kDefaultModel))
      ->type_name("MODEL")
      ->envname("QEVICT_MODEL")
      ->group(group);
  app.add_option("-t,--threads", o.engine.n_threads, "threads [physical cores of this process]")
      ->check(in_range(1, kMaxThreads))
      ->type_name("N")
      ->envname("QEVICT_THREADS")
      ->group(group);
  app.add_option("-c,--ctx-size", o.engine.ctx_size,
                 "context in tokens, 32k works too [the model's]")
      ->transform(with_suffix())
      ->check(in_range(0, kMaxInt))
      ->type_name("N")
      ->envname("QEVICT_CTX_SIZE")
      ->group(group);
  app.add_option("-b,--batch-size", o.engine.batch_size, "prompt tokens computed together [512]")
      ->check(in_range(1, kMaxBatch))
      ->type_name("N")
      ->envname("QEVICT_BATCH_SIZE")
      ->group(group);
  app.add_flag("--no-repack", o.no_repack,
               "keep the weights in the file's layout: less memory, slower")
      ->group(group);
  app.add_option("--rewrite-weights", o.rewrite_text,
                 "keep Q5_0 weights as Q8_0 (same values, 1.55 times the memory): auto (where the\n"
                 "CPU has a fast layout for them), always, never [auto]")
      ->check(CLI::IsMember({"auto", "always", "never"}))
      ->type_name("WHEN")
      ->group(group);
}

void add_policy_option(CLI::App& app, CommonOptions& o) {
  app.add_option("--policy", o.policy_text,
                 "what decides about the cache, with its parameters; `qevict policies` lists them\n"
                 "[qevict+; qevict with an option below that only it has]")
      ->type_name("NAME[:key=value,...]")
      ->envname("QEVICT_POLICY")
      ->group("Cache");
}

void add_cache_options(CLI::App& app, CommonOptions& o, std::string_view skipped) {
  const std::string group = "Cache";
  for (const CacheOption& row : kCacheOptions) {
    if (row.flag == skipped) continue;
    const std::string flag(row.flag);
    const std::string help(row.help);
    if (row.value.empty()) {
      app.add_flag_callback(
             flag, [&o, &row] { o.typed.emplace_back(&row, flag_value(row)); }, help)
          ->group(group);
      continue;
    }
    app.add_option_function<std::string>(
           flag, [&o, &row](const std::string& text) { o.typed.emplace_back(&row, text); }, help)
        ->type_name(std::string(row.value))
        ->envname(environment_name(row.flag))
        ->group(group);
  }
}

void add_sampling_options(CLI::App& app, CommonOptions& o) {
  const std::string group = "Generation";
  SamplerOptions& s = o.generate.sampler;
  app.add_option("-n,--n-predict,--predict", o.generate.n_predict, "most tokens to generate [256]")
      ->check(in_range(1, kMaxInt))
      ->type_name("N")
      ->envname("QEVICT_N_PREDICT")
      ->group(group);
  app.add_option("--temp,--temperature", s.temperature, "0: the most likely token, always [0]")
      ->check(in_range(0.0F, 100.0F))
      ->type_name("T")
      ->envname("QEVICT_TEMP")
      ->group(group);
  app.add_option("--top-k", s.top_k, "sample from the K most likely; 0: from all [40]")
      ->check(in_range(0, kMaxInt))
      ->type_name("K")
      ->envname("QEVICT_TOP_K")
      ->group(group);
  app.add_option("--top-p", s.top_p, "sample from the most likely that add up to P [0.95]")
      ->check(in_range(0.0F, 1.0F))
      ->type_name("P")
      ->envname("QEVICT_TOP_P")
      ->group(group);
  app.add_option("--min-p", s.min_p, "drop what is less likely than P times the best [0.05]")
      ->check(in_range(0.0F, 1.0F))
      ->type_name("P")
      ->envname("QEVICT_MIN_P")
      ->group(group);
  app.add_option("-s,--seed", s.seed, "seed of the sampler: same seed, same text [0]")
      ->type_name("N")
      ->envname("QEVICT_SEED")
      ->group(group);
  app.add_option("--stop", o.generate.stop, "end before this text; repeatable")
      ->allow_extra_args(false)
      ->type_name("TEXT")
      ->group(group);
  app.add_flag("--ignore-eos", o.generate.ignore_eos, "never sample an end-of-generation token")
      ->group(group);
}

void add_quiet_option(CLI::App& app, CommonOptions& o) {
  app.add_flag("-q,--quiet", o.quiet, "errors only on stderr");
}

void add_json_option(CLI::App& app, CommonOptions& o) {
  app.add_flag("--json", o.json, "print JSON instead of text");
}

Status apply_policy(const std::string& text, CacheConfig& config) {
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const Result<const PolicySpec*> policy = require_policy(name);
  if (!policy) return std::unexpected(policy.error());
  config.policy = name;
  config.policy_parameters.clear();
  if (colon == std::string::npos) return {};
  for (const std::string& item : CLI::detail::split(text.substr(colon + 1), ',')) {
    if (Status s = apply_policy_parameter(**policy, item, config); !s) return s;
  }
  const Result<const PolicySpec*> checked = require_policy(config);
  return checked ? Status() : std::unexpected(checked.error());
}

std::vector<std::string> join_parameters(std::vector<std::string> policies) {
  std::vector<std::string> joined;
  for (std::string& item : policies) {
    const bool parameter = item.find('=') < item.find(':');
    if (parameter && !joined.empty()) {
      joined.back() += "," + item;
    } else {
      joined.push_back(std::move(item));
    }
  }
  return joined;
}

namespace {

// Options before a policy that has parameters of its own: those it knows by the same name are its
// parameters, unless they were given with it; others would be left unused.
Status hand_over_options(CommonOptions& o) {
  const PolicySpec& policy = *find_policy(o.cache.policy);
  if (!policy.check_parameters) return {};
  const std::vector<std::string_view> known = policy_keys(policy);
  for (const auto& [row, text] : o.typed) {
    if (row->every_policy) continue;
    if (std::ranges::find(known, row->key) == known.end()) {
      return bad_input(fmt::format("policy {} does not know {} (--policy): leave it out",
                                   policy.name, row->flag));
    }
    std::vector<PolicyParameter>& given = o.cache.policy_parameters;
    if (std::ranges::find(given, row->key, &PolicyParameter::key) == given.end()) {
      given.push_back({std::string(row->key), text});
    }
  }
  return policy.check_parameters(o.cache);
}

}  // namespace

std::string default_policy(const CommonOptions& o) {
  const bool only_qevict = std::ranges::any_of(o.typed, [](const auto& option) {
    return !option.first->every_policy || option.second == "materialised";
  });
  return only_qevict ? "qevict" : "qevict+";
}

Status finish_options(CommonOptions& o) {
  o.engine.repack = !o.no_repack;
  o.engine.rewrite = o.rewrite_text == "always"  ? WeightRewrite::Always
                     : o.rewrite_text == "never" ? WeightRewrite::Never
                                                 : WeightRewrite::Auto;
  o.engine.cancel = &interrupt_flag();
  o.generate.cancel = &interrupt_flag();
  for (const auto& [row, text] : o.typed) {
    if (Status s = row->set(o.cache, text); !s) return s;
  }
  if (o.policy_text.empty()) o.policy_text = default_policy(o);
  if (Status s = apply_policy(o.policy_text, o.cache); !s) return s;
  if (Status s = hand_over_options(o); !s) return s;
  if (std::ranges::find(o.generate.stop, "") != o.generate.stop.end()) {
    return bad_input("the stop text is empty (--stop): give at least one character");
  }
  return o.cache.validate();
}

std::unexpected<Error> not_available(std::string_view what) {
  return bad_input(
      fmt::format("{} is not available in this version (command line): leave it out", what));
}

CLI::Validator with_suffix() { return CLI::AsSizeValue(false).description(""); }

void set_help_style(CLI::App& app) { app.formatter(std::make_shared<HelpFormatter>()); }

}  // namespace qevict::cli
