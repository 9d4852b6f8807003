// qevict chat: a conversation whose compressed cache is kept between turns.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "cli/commands.h"
#include "cli/conversation.h"
#include "cli/inputs.h"
#include "cli/json_report.h"
#include "cli/signals.h"

namespace qevict::cli {
namespace {

struct ChatArgs {
  CommonOptions common;
  std::string system;
};

// Lines of stdin, with Ctrl-C noticed while waiting.
class LineReader {
 public:
  enum class Outcome { Line, End, Interrupted, Failed };
  Outcome next(std::string& line) {
    while (true) {
      if (const std::size_t end = held_.find('\n'); end != std::string::npos) {
        line = held_.substr(0, end);
        held_.erase(0, end + 1);
        if (line.ends_with('\r')) line.pop_back();
        return Outcome::Line;
      }
      if (interrupted_by_user()) return Outcome::Interrupted;
      char buffer[4096];
      const ssize_t n = read(STDIN_FILENO, buffer, sizeof buffer);
      if (n > 0) {
        held_.append(buffer, static_cast<std::size_t>(n));
      } else if (n == 0) {
        line = std::exchange(held_, {});
        return line.empty() ? Outcome::End : Outcome::Line;
      } else if (errno != EINTR) {
        return Outcome::Failed;
      }
    }
  }

 private:
  std::string held_;
};

class Chat {
 public:
  Chat(const ChatArgs& args, Engine& engine, const Console& console)
      : args_(args), engine_(engine), console_(console), terminal_(isatty(STDIN_FILENO) != 0) {}

  Result<int> run();

 private:
  enum class Next { Continue, Exit };
  Status restart();
  Result<Next> handle(const std::string& line);
  Result<Next> answer(const std::string& line);
  Result<std::vector<TokenId>> encode() const;
  Result<Next> on_prompt_error(const Error& error);
  void finish_turn(const GenerateResult& result);
  void show_stats() const;

  const ChatArgs& args_;
  Engine& engine_;
  const Console& console_;
  const bool terminal_;
  Output output_;
  LineReader lines_;
  std::unique_ptr<Session> session_;
  std::vector<ChatMessage> messages_;
  bool answered_ = false;  // the cache holds an assistant turn
  bool last_interrupted_ = false;
};

Status Chat::restart() {
  auto session = engine_.create_session(args_.common.cache);
  if (!session) return std::unexpected(session.error());
  session_ = std::move(*session);
  messages_.clear();
  if (!args_.system.empty()) messages_.push_back({"system", args_.system});
  answered_ = false;
  return {};
}

Result<std::vector<TokenId>> Chat::encode() const {
  const std::string& model = engine_.model().path();
  return answered_ ? encode_continuation(engine_.tokenizer(), messages_, model)
                   : encode_conversation(engine_.tokenizer(), messages_, model);
}

// The question could not be read: forget it. People may go on, scripts must notice.
Result<Chat::Next> Chat::on_prompt_error(const Error& error) {
  messages_.pop_back();
  if (error.code == ErrorCode::Interrupted && terminal_) {
    clear_interrupt();
    console_.note("interrupted; the question is forgotten");
    return Next::Continue;
  }
  if (!terminal_) return std::unexpected(error);
  report_error(error);
  return Next::Continue;
}

Result<Chat::Next> Chat::answer(const std::string& line) {
  messages_.push_back({"user", line});
  if (Status s = check_utf8(line, "standard input"); !s) return on_prompt_error(s.error());
  const Result<std::vector<TokenId>> tokens = encode();
  if (!tokens) return on_prompt_error(tokens.error());
  GenerateOptions options = args_.common.generate;
  ProgressBar bar(console_, "reading");
  options.prefill_progress = bar.block_counter();
  options.on_text = [this](const std::string& text) {
    output_.write(text);
    if (output_.failed()) request_stop();
  };
  const Result<GenerateResult> result = session_->generate(*tokens, options);
  bar.clear();
  if (!result) return on_prompt_error(result.error());
  output_.write("\n");
  if (Status s = output_.status(); !s) return std::unexpected(s.error());
  finish_turn(*result);
  if (result->failure) return std::unexpected(*result->failure);
  if (last_interrupted_ && !terminal_) return interrupted("");
  return Next::Continue;
}

void Chat::finish_turn(const GenerateResult& result) {
  messages_.push_back({"assistant", result.text});
  answered_ = true;
  last_interrupted_ = result.stop_reason == StopReason::Interrupted;
  if (last_interrupted_ && terminal_) clear_interrupt();
  for (const std::string& warning : result.warnings) console_.warn(warning);
  const Timing& t = result.timing;
  const double speed = t.tpot_median_ms > 0.0 ? 1000.0 / t.tpot_median_ms : 0.0;
  console_.note(console_.paint(
      fmt::format("[{} + {} tokens ({}), TTFT {}, {:.1f} tok/s, cache {} of {}, {} promotions]",
                  result.prompt_tokens, result.tokens.size(), to_string(result.stop_reason),
                  format_ms(t.ttft_ms), speed, format_bytes(result.kv.resident_bytes),
                  format_bytes(result.kv.full_cache_bytes), result.kv.promotions),
      "dim"));
}

void Chat::show_stats() const {
  const CacheStats s = session_->kv_stats();
  console_.note(fmt::format("{} tokens; cache {} held, peak {}, budget {}, full KV would be {}",
                            s.n_tokens, format_bytes(s.resident_bytes),
                            format_bytes(s.peak_resident_bytes), format_bytes(s.budget_bytes),
                            format_bytes(s.full_cache_bytes)));
  console_.note(fmt::format(
      "windows per layer: {:.1f} full, {:.1f} quantized, {:.1f} evicted; {} events, {} promotions, "
      "{} demotions, {} evictions",
      per_layer(s.full_windows, s), per_layer(s.quantized_windows, s),
      per_layer(s.evicted_windows, s), s.events, s.promotions, s.demotions, s.evictions));
}

Result<Chat::Next> Chat::handle(const std::string& line) {
  if (line.find_first_not_of(" \t") == std::string::npos) return Next::Continue;
  if (line == "/exit" || line == "/quit") return Next::Exit;
  if (line == "/stats") {
    show_stats();
    return Next::Continue;
  }
  if (line == "/clear") {
    if (Status s = restart(); !s) return std::unexpected(s.error());
    console_.note("the conversation is forgotten");
    return Next::Continue;
  }
  if (line.starts_with("/")) {
    console_.note("commands: /clear forgets the conversation, /stats shows the cache, /exit ends");
    return Next::Continue;
  }
  return answer(line);
}

Result<int> Chat::run() {
  if (Status s = restart(); !s) return std::unexpected(s.error());
  if (!engine_.tokenizer().has_chat_template()) {
    return bad_input(fmt::format("the model has no chat template ({}): use `qevict run`",
                                 engine_.model().path()));
  }
  if (terminal_) console_.note("Ctrl-C stops an answer, Ctrl-D or /exit ends; /stats, /clear");
  bool warned = false;
  std::string line;
  while (true) {
    if (terminal_) output_.write("> ");
    switch (lines_.next(line)) {
      case LineReader::Outcome::End:
        if (terminal_) output_.write("\n");
        return kOk;
      case LineReader::Outcome::Failed:
        return runtime_error(
            "cannot read the next line (standard input): check where it comes from");
      case LineReader::Outcome::Interrupted:
        if (!terminal_ || warned) return interrupted("");
        clear_interrupt();
        warned = true;
        output_.write("\n");
        console_.note("Ctrl-C again, Ctrl-D or /exit ends");
        continue;
      case LineReader::Outcome::Line:
        warned = false;
        break;
    }
    const Result<Next> next = handle(line);
    if (!next) return std::unexpected(next.error());
    if (*next == Next::Exit) return kOk;
  }
}

Result<int> run_chat(ChatArgs& args) {
  if (Status s = finish_options(args.common); !s) return std::unexpected(s.error());
  if (Status s = check_utf8(args.system, "--system"); !s) return std::unexpected(s.error());
  const Console console(args.common.quiet);
  const auto engine = load_engine(args.common, console);
  if (!engine) return std::unexpected(engine.error());
  return Chat(args, **engine, console).run();
}

}  // namespace

void add_chat_command(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<ChatArgs>();
  CLI::App* command =
      app.add_subcommand("chat", "talk to a model; its cache is kept between turns");
  command->add_option("--system", args->system, "system message")->type_name("TEXT");
  add_model_options(*command, args->common);
  add_sampling_options(*command, args->common);
  add_policy_option(*command, args->common);
  add_cache_options(*command, args->common);
  add_quiet_option(*command, args->common);
  command->footer(
      "A line is a question. /clear forgets the conversation, /stats shows the cache, /exit ends.\n"
      "Ctrl-C stops the answer.\n"
      "Example:\n"
      "  qevict chat --system \"Answer in one sentence.\" --kv-budget 0.25");
  command->callback([args, &exit_code] {
    const Result<int> code = run_chat(*args);
    exit_code = code ? *code : report_error(code.error());
  });
}

}  // namespace qevict::cli
