#include "eval/data.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>

#include "engine/child_process.h"
#include "eval/text.h"

namespace qevict {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 31;

std::vector<std::string> data_folders(std::string_view data_dir) {
  std::vector<std::string> folders;
  while (!data_dir.empty()) {
    const std::size_t end = std::min(data_dir.find(':'), data_dir.size());
    if (end > 0) folders.emplace_back(data_dir.substr(0, end));
    data_dir.remove_prefix(std::min(end + 1, data_dir.size()));
  }
  folders.push_back(default_data_dir());
  return folders;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// nlohmann's messages end in what a user can not use; the position is in the middle.
std::string parse_problem(const Json::parse_error& error) {
  const std::string_view what = error.what();
  const std::string_view kind = what.find("ill-formed UTF-8") != std::string_view::npos
                                    ? "not valid UTF-8"
                                    : "not valid JSON";
  const std::size_t column = what.find("column ");
  const std::size_t detail = what.find(": ", column == std::string_view::npos ? 0 : column);
  return column == std::string_view::npos || detail == std::string_view::npos
             ? std::string(kind)
             : fmt::format("{}, {}", kind, what.substr(column, detail - column));
}

Result<Json> parse_json(std::string_view text, const std::string& where) {
  if (text.find('\0') != std::string_view::npos) {
    return bad_input(fmt::format("a NUL byte ({}): remove it, or save the file as UTF-8", where));
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return bad_input(fmt::format("{} ({}): correct it", parse_problem(error), where));
  } catch (const std::exception&) {
    return bad_input(fmt::format("JSON that cannot be read ({}): correct it", where));
  }
}

Result<std::string> read_packed(const std::string& path) {
  std::string unpacked = fs::temp_directory_path().string() + "/qevict-data-XXXXXX";
  const int file = mkstemp(unpacked.data());
  if (file < 0) {
    return runtime_error(
        fmt::format("cannot write: {} ({}): check the disk", std::strerror(errno), unpacked));
  }
  close(file);
  const Result<int> status =
      run_child({"gzip", "-dc", path},
                {.output_file = unpacked, .environment = {}, .cancel = nullptr, .on_tick = {}});
  Result<std::string> bytes = read_data(unpacked);
  std::remove(unpacked.c_str());
  if (!status) return std::unexpected(status.error());
  if (*status == 0 && bytes) return bytes;
  return bad_input(fmt::format("cannot be unpacked by gzip ({}): unpack it beside", path));
}

// Of an error message: the article and JSON's word for the type.
std::string type_name(const Json& json) {
  if (json.is_null()) return "null";
  if (json.is_object() || json.is_array()) return fmt::format("an {}", json.type_name());
  return fmt::format("a {}", json.type_name());
}

}  // namespace

std::string default_data_dir() {
  if (const std::string cache = variable("QEVICT_CACHE"); !cache.empty()) return cache + "/data";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache + "/qevict/data";
  }
  return variable("HOME") + "/.cache/qevict/data";
}

std::string find_data(std::string_view data_dir, std::initializer_list<std::string_view> names) {
  for (const std::string& folder : data_folders(data_dir)) {
    for (const std::string_view name : names) {
      std::error_code ignored;
      std::string path = folder + "/" + std::string(name);
      if (fs::exists(path, ignored)) return path;
    }
  }
  return "";
}

Result<std::string> require_data(std::string_view data_dir, std::string_view set,
                                 std::initializer_list<std::string_view> names) {
  std::string path = find_data(data_dir, names);
  if (!path.empty()) return path;
  return bad_input(fmt::format(
      "no data for '{}' ({} in {}): run tools/fetch_data.py {}, or give its folder with --data",
      set, fmt::join(names, " or "), fmt::join(data_folders(data_dir), ", "), set));
}

Result<std::string> read_data(const std::string& path) {
  if (path.ends_with(".gz")) return read_packed(path);
  std::error_code problem;
  if (fs::is_directory(path, problem)) {
    return bad_input(fmt::format("a folder, not a file ({}): name a file", path));
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rbe"),
                                                             &std::fclose);
  if (!file) {
    return bad_input(
        fmt::format("cannot read: {} ({}): check the path", std::strerror(errno), path));
  }
  std::string bytes;
  std::vector<char> buffer(std::size_t{1} << 18);
  while (const std::size_t n = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    bytes.append(buffer.data(), n);
    if (bytes.size() > kMaxFileBytes) {
      return bad_input(fmt::format("larger than 2 GiB ({}): split it", path));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return bad_input(fmt::format("cannot be read to its end ({}): check the disk", path));
  }
  if (bytes.empty())
    return bad_input(fmt::format("an empty file ({}): fetch or write it again", path));
  return bytes;
}

Result<std::vector<std::string>> list_data(const std::string& folder, std::string_view suffix) {
  std::vector<std::string> paths;
  std::error_code problem;
  for (fs::directory_iterator at(folder, problem), end; !problem && at != end;
       at.increment(problem)) {
    std::string path = at->path().string();
    if (path.ends_with(suffix)) paths.push_back(std::move(path));
  }
  if (problem) {
    return bad_input(fmt::format("cannot be listed: {} ({}): check it", problem.message(), folder));
  }
  if (paths.empty()) {
    return bad_input(fmt::format("no *{} there ({}): fetch them again", suffix, folder));
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::unexpected<Error> JsonRecord::error(const char* field, std::string_view message) const {
  return bad_input(fmt::format("field \"{}\": {} ({}): correct it", field, message, where_));
}

Result<const Json*> JsonRecord::get(const char* field) const {
  const auto found = json_->find(field);
  if (found == json_->end()) return error(field, "missing");
  return &*found;
}

Result<std::string> JsonRecord::text(const char* field) const {
  const auto value = get(field);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_string()) return error(field, type_name(**value) + ", not a string");
  const std::string& text = (*value)->get_ref<const std::string&>();
  if (text.find('\0') != std::string::npos) return error(field, "holds a NUL");
  return text;
}

Result<std::vector<std::string>> JsonRecord::texts(const char* field) const {
  const auto value = get(field);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_array()) return error(field, type_name(**value) + ", not an array of strings");
  std::vector<std::string> texts;
  for (const Json& item : **value) {
    if (!item.is_string()) {
      return error(field,
                   fmt::format("item {} is {}, not a string", texts.size(), type_name(item)));
    }
    texts.push_back(item.get_ref<const std::string&>());
    if (texts.back().find('\0') != std::string::npos) return error(field, "holds a NUL");
  }
  return texts;
}

Result<std::int64_t> JsonRecord::integer(const char* field, std::int64_t least,
                                         std::int64_t most) const {
  const auto value = get(field);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_number_integer()) {
    return error(field, type_name(**value) + ", not a whole number");
  }
  // One that only fits without a sign is too large for any limit here.
  const bool huge = (*value)->is_number_unsigned() &&
                    (*value)->get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX);
  const std::int64_t number = huge ? INT64_MAX : (*value)->get<std::int64_t>();
  if (number < least || number > most) {
    return error(field, fmt::format("{}, not in {}..{}", (*value)->dump(), least, most));
  }
  return number;
}

Result<bool> JsonRecord::flag(const char* field) const {
  const auto value = get(field);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_boolean()) return error(field, type_name(**value) + ", not true or false");
  return (*value)->get<bool>();
}

Result<std::vector<JsonRecord>> JsonRecord::records(const char* field) const {
  const auto value = get(field);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_array()) return error(field, type_name(**value) + ", not an array of objects");
  std::vector<JsonRecord> records;
  for (const Json& item : **value) {
    if (!item.is_object()) {
      return error(field,
                   fmt::format("item {} is {}, not an object", records.size(), type_name(item)));
    }
    records.emplace_back(item, fmt::format("{}, {}[{}]", where_, field, records.size()));
  }
  return records;
}

Result<JsonRecord> JsonRecord::record(const char* field) const {
  const auto value = get(field);
  if (!value) return std::unexpected(value.error());
  if (!(*value)->is_object()) return error(field, type_name(**value) + ", not an object");
  return JsonRecord(**value, where_);
}

Result<Json> read_json(const std::string& path) {
  const Result<std::string> text = read_data(path);
  if (!text) return std::unexpected(text.error());
  return parse_json(*text, path);
}

Status read_json_lines(const std::string& path,
                       const std::function<Status(const JsonRecord&)>& use) {
  const Result<std::string> text = read_data(path);
  if (!text) return std::unexpected(text.error());
  std::string_view rest = *text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (trim(line).empty()) continue;
    const std::string where = fmt::format("{}, line {}", path, number);
    const Result<Json> json = parse_json(line, where);
    if (!json) return std::unexpected(json.error());
    if (!json->is_object()) {
      return bad_input(
          fmt::format("{}, not a JSON object ({}): write one a line", type_name(*json), where));
    }
    if (Status s = use(JsonRecord(*json, where)); !s) return s;
  }
  return {};
}

}  // namespace qevict
