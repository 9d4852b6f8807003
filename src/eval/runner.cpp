#include "eval/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <string_view>
#include <unordered_set>

#include "eval/sample_diagnostics.h"

namespace qevict {
namespace {

std::unexpected<Error> in_sample(const std::string& task, const std::string& id, Error error) {
  error.message = fmt::format("task {}, sample {}: {}", task, id, error.message);
  return std::unexpected(std::move(error));
}

// FNV-1a, 64 bits; every part ends with its length, so that parts cannot run into each other.
class Digest {
 public:
  void add(std::string_view text) {
    for (const char c : text) mix(static_cast<unsigned char>(c));
    add_number(text.size());
  }
  void add_number(std::uint64_t n) {
    for (int i = 0; i < 8; ++i) mix(static_cast<unsigned char>(n >> (8 * i)));
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  void mix(unsigned char byte) { hash_ = (hash_ ^ byte) * 0x100000001b3ULL; }
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
};

void add_sample(const Sample& s, Digest& digest) {
  for (const std::string* text : {&s.id, &s.context, &s.question, &s.answer_prefix}) {
    digest.add(*text);
  }
  for (const auto* list : {&s.answers, &s.classes, &s.stop}) {
    for (const std::string& text : *list) digest.add(text);
    digest.add_number(list->size());
  }
  digest.add_number(static_cast<std::uint64_t>(s.max_new_tokens));
  digest.add(to_string(s.metric));
  digest.add_number((s.chat ? 1U : 0U) + (s.first_line_only ? 2U : 0U));
}

CellResult make_cell(const LoadedTask& task, std::size_t sample_index, const Contender& contender,
                     const RunOptions& options) {
  CellResult c;
  c.task = task.name;
  c.id = task.samples[sample_index].id;
  c.policy = contender.policy;
  c.budget = contender.budget;
  c.protocol = options.protocol;
  return c;
}

void fill_cell(const LoadedTask& task, std::size_t sample_index, const Contender& contender,
               const RunOptions& options, Answer answer, CellResult& c) {
  const Sample& sample = task.samples[sample_index];
  const CacheStats& kv = answer.kv;
  c.score = score(sample, answer.text);
  c.metric = to_string(sample.metric);
  c.prediction = std::move(answer.text);
  c.stop_reason = to_string(answer.stop_reason);
  c.kv_resident_bytes = kv.resident_bytes;
  c.kv_budget_bytes = contender.budget ? kv.budget_bytes : 0;
  c.metadata_bytes = kv.positions_bytes + kv.ledger_bytes + kv.dormant_bytes + kv.scores_bytes;
  c.full_cache_bytes = kv.full_cache_bytes;
  c.over_budget = is_over_budget(contender, kv);
  c.prompt_tokens = task.prompts[sample_index].n_tokens();
  c.generated_tokens = answer.n_tokens;
  c.seconds = answer.seconds;
  c.seed = options.task.seed;
  c.context = options.task.context_tokens;
  c.model = options.model;
}

// With the task's local zone, where the contender asks for none.
Contender for_task(Contender contender, const LoadedTask& task) {
  const CacheConfig defaults;
  CacheConfig& config = contender.config;
  if (config.n_local == defaults.n_local && config.local_share == defaults.local_share) {
    config.local_share = task.local_share;
  }
  return contender;
}

// A sample and the contenders whose cells are missing.
struct Work {
  const LoadedTask* task = nullptr;
  std::size_t sample = 0;
  std::vector<Contender> contenders;
};

std::vector<Work> pending_work(std::span<const LoadedTask> tasks,
                               std::span<const Contender> contenders, const RunOptions& options,
                               const std::vector<CellResult>& stored) {
  std::unordered_set<std::string> done;
  for (const CellResult& cell : stored) done.insert(cell.key());
  std::vector<Work> work;
  std::size_t number = 0;  // over all tasks, so that short tasks are shared out too
  for (const LoadedTask& task : tasks) {
    for (std::size_t i = 0; i < task.samples.size(); ++i, ++number) {
      if (number % static_cast<std::size_t>(options.shard.count) !=
          static_cast<std::size_t>(options.shard.index)) {
        continue;
      }
      Work one{&task, i, {}};
      for (const Contender& c : contenders) {
        if (!done.contains(make_cell(task, i, c, options).key()))
          one.contenders.push_back(for_task(c, task));
      }
      if (!one.contenders.empty()) work.push_back(std::move(one));
    }
  }
  return work;
}

}  // namespace

Result<LoadedTask> load_task(const std::string& name, const Task& task, const Tokenizer& tokenizer,
                             const TaskOptions& options, Protocol protocol, int ctx_size) {
  Result<std::vector<Sample>> samples = task.samples(tokenizer, options);
  if (!samples) return std::unexpected(samples.error());
  if (samples->empty()) {
    return bad_input(fmt::format("task {} has no samples (--tasks): check its data", name));
  }
  LoadedTask loaded{name, std::move(*samples), {}, {}};
  Digest digest;
  std::set<std::string> ids;
  for (const Sample& sample : loaded.samples) {
    if (!ids.insert(sample.id).second) {
      return bad_input(
          fmt::format("sample id '{}' twice (task {}): make ids unique", sample.id, name));
    }
    Result<EvalPrompt> prompt = make_prompt(tokenizer, sample, protocol);
    if (!prompt) return in_sample(name, sample.id, prompt.error());
    const std::int64_t needed =
        static_cast<std::int64_t>(prompt->n_tokens()) + sample.max_new_tokens;
    if (needed > ctx_size) {
      return bad_input(
          fmt::format("task {}, sample {}: {} prompt tokens and {} of the answer do not fit the "
                      "context of {} (--ctx-size): lower --context or shorten the data",
                      name, sample.id, prompt->n_tokens(), sample.max_new_tokens, ctx_size));
    }
    add_sample(sample, digest);
    loaded.prompts.push_back(std::move(*prompt));
  }
  loaded.digest = digest.text();
  const auto spec = std::ranges::find(tasks(), name, &TaskSpec::name);
  if (spec != tasks().end()) loaded.local_share = spec->local_share;
  return loaded;
}

Result<Shard> parse_shard(const std::string& text) {
  Shard shard;
  const char* end = text.data() + text.size();
  const auto [slash, bad_index] = std::from_chars(text.data(), end, shard.index);
  const bool has_slash = bad_index == std::errc{} && slash != end && *slash == '/';
  const auto [last, bad_count] = std::from_chars(has_slash ? slash + 1 : end, end, shard.count);
  if (!has_slash || bad_count != std::errc{} || last != end || shard.count < 1 || shard.index < 0 ||
      shard.index > shard.count) {
    return bad_input(
        fmt::format("'{}' (--shard): write i/n, with i from 0 to n, such as 2/8", text));
  }
  shard.index %= shard.count;
  return shard;
}

namespace {

using SampleOptions = SampleRunner::Options;

// One sample's cells, after its diagnostics: whoever finds the cells finds those too.
class Worker {
 public:
  Worker(Engine& engine, const RunOptions& options, RunFiles& files)
      : engine_(engine), options_(options), files_(files), runner_(engine) {
    for (const std::string& line : files.diagnostics_lines) {
      diagnosed_.insert(diagnostics_key(line));
    }
  }

  Status run(const Work& w, const SampleOptions& options) {
    if (files_.diagnostics) {
      if (Status s = diagnose(w, options); !s) return s;
    }
    auto answers = runner_.run(sample(w), prompt(w), w.contenders, options);
    if (!answers) return std::unexpected(answers.error());
    std::vector<CellResult> cells;
    std::vector<std::string> lines;
    for (std::size_t i = 0; i < w.contenders.size(); ++i) {
      cells.push_back(make_cell(*w.task, w.sample, w.contenders[i], options_));
      fill_cell(*w.task, w.sample, w.contenders[i], options_, std::move((*answers)[i]),
                cells.back());
      lines.push_back(to_line(cells.back()));
    }
    if (Status s = files_.results.append(lines); !s) return s;
    files_.cells.insert(files_.cells.end(), cells.begin(), cells.end());
    return {};
  }

 private:
  static const Sample& sample(const Work& w) { return w.task->samples[w.sample]; }
  static const EvalPrompt& prompt(const Work& w) { return w.task->prompts[w.sample]; }

  Status diagnose(const Work& w, const SampleOptions& options) {
    std::vector<Contender> wanted;
    for (const Contender& c : w.contenders) {
      const bool there = diagnosed_.contains(make_cell(*w.task, w.sample, c, options_).key());
      if (!there && can_diagnose(c)) wanted.push_back(c);
    }
    if (wanted.empty()) return {};
    SampleOptions quiet = options;
    quiet.progress = nullptr;
    const auto lines =
        diagnose_sample(engine_, w.task->name, sample(w).id, prompt(w), wanted, quiet);
    if (!lines) return std::unexpected(lines.error());
    if (Status s = files_.diagnostics->append(*lines); !s) return s;
    files_.diagnostics_lines.insert(files_.diagnostics_lines.end(), lines->begin(), lines->end());
    return {};
  }

  Engine& engine_;
  const RunOptions& options_;
  RunFiles& files_;
  SampleRunner runner_;
  std::unordered_set<std::string> diagnosed_;
};

}  // namespace

Status run_evaluation(Engine& engine, std::span<const LoadedTask> tasks,
                      std::span<const Contender> contenders, const RunOptions& options,
                      RunFiles& files) {
  const std::vector<Work> work = pending_work(tasks, contenders, options, files.cells);
  double total = 0.0;
  double before = 0.0;  // cells of the samples that are finished
  for (const Work& w : work) total += static_cast<double>(w.contenders.size());
  Worker worker(engine, options, files);
  for (const Work& w : work) {
    const auto n = static_cast<double>(w.contenders.size());
    SampleOptions one;
    one.cancel = options.cancel;
    if (options.progress) {
      one.progress = [&](double share) { options.progress(before + share * n, total); };
    }
    if (Status s = worker.run(w, one); !s) {
      if (s.error().code == ErrorCode::Interrupted) {
        return interrupted("interrupted (Ctrl-C): continue with --resume");
      }
      return in_sample(w.task->name, w.task->samples[w.sample].id, s.error());
    }
    before += n;
    if (options.progress) options.progress(before, total);
  }
  return {};
}

}  // namespace qevict
