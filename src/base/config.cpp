#include "qevict/config.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string_view>

namespace qevict {
namespace {

constexpr int kMaxWindow = 32;  // the limit of the kernels (kernels/kernels.h)

// A finite decimal number at the start of `text`; what follows it goes to `rest`.
std::optional<double> take_number(std::string_view text, std::string_view& rest) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value)) return std::nullopt;
  rest = text.substr(static_cast<std::size_t>(end - text.data()));
  return value;
}

// The whole of `text` as a number.
std::optional<double> whole_number(std::string_view text) {
  std::string_view rest;
  const auto value = take_number(text, rest);
  return rest.empty() ? value : std::nullopt;
}

std::string shortest(double value) {
  std::array<char, 64> buffer;
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value);
  return error == std::errc{} ? std::string(buffer.data(), end) : std::to_string(value);
}

struct ByteUnit {
  std::string_view name;
  double bytes;
};
// Largest first within a family: to_string() takes the first that divides.
constexpr ByteUnit kByteUnits[] = {{"GiB", 1073741824.0}, {"MiB", 1048576.0}, {"KiB", 1024.0},
                                   {"GB", 1e9},           {"MB", 1e6},        {"KB", 1e3},
                                   {"kB", 1e3},           {"B", 1.0}};
constexpr int kBinaryUnits = 3;
// Above this a double no longer counts single bytes.
constexpr double kMaxCount = 9007199254740992.0;

std::string option(std::string_view name, std::string_view value) {
  return std::string(value) + " (" + std::string(name) + "): ";
}

Status check_int(std::string_view name, long long value, long long low, long long high) {
  if (value >= low && value <= high) return {};
  return bad_input(option(name, std::to_string(value)) + "use a number from " +
                   std::to_string(low) + " to " + std::to_string(high));
}

// !(in range) on purpose: NaN fails.
Status check_real(std::string_view name, double value, bool in_range, std::string_view range) {
  if (in_range) return {};
  return bad_input(option(name, shortest(value)) + "use a number " + std::string(range));
}

Status check_budget(const KvBudget& budget) {
  switch (budget.unit) {
    case KvBudget::Unit::Ratio:
      return check_real("kv_budget", budget.value, budget.value > 0.0 && budget.value <= 1.0,
                        "above 0, at most 1, as a fraction of the full fp16 cache");
    case KvBudget::Unit::Bytes:
    case KvBudget::Unit::Tokens:
      return check_real("kv_budget", budget.value, budget.value >= 1.0 && budget.value <= kMaxCount,
                        "from 1 to 2^53 bytes or tokens");
  }
  return {};
}

Status check_ranker(const Ranker& ranker) {
  const double p = ranker.parameter;
  switch (ranker.kind) {
    case Ranker::Kind::Mass:
    case Ranker::Kind::KeyL2:
      return {};
    case Ranker::Kind::Decay:
      return check_real("ranker decay", p, p > 0.0 && p <= 1.0, "above 0, at most 1");
    case Ranker::Kind::PNorm:
      return check_real("ranker pnorm", p, p > 0.0 && p <= 64.0, "above 0, at most 64");
  }
  return {};
}

}  // namespace

Result<KvBudget> KvBudget::parse(const std::string& text) {
  const auto refuse = [&](const std::string& why) {
    return bad_input("'" + text + "' (kv_budget): " + why);
  };
  std::string_view unit;
  const auto number = take_number(text, unit);
  if (!number) return refuse("use a fraction (0.2 or 20%), bytes (512MiB) or tokens (4096tok)");
  KvBudget budget;
  budget.value = *number;
  if (unit.empty() || unit == "%") {
    budget.unit = Unit::Ratio;
    if (unit == "%") budget.value /= 100.0;
    if (unit.empty() && budget.value > 1.0) {
      return refuse("a number above 1 needs a unit: MiB, MB, B or tok");
    }
  } else if (unit == "tok" || unit == "tokens") {
    budget.unit = Unit::Tokens;
  } else {
    budget.unit = Unit::Bytes;
    double factor = 0.0;
    for (const ByteUnit& u : kByteUnits) {
      if (unit == u.name) factor = u.bytes;
    }
    if (factor == 0.0) {
      return refuse("unknown unit '" + std::string(unit) +
                    "': use %, B, KB, MB, GB, KiB, MiB, GiB or tok");
    }
    budget.value *= factor;
  }
  if (budget.unit != Unit::Ratio) budget.value = std::floor(budget.value);
  if (const Status ok = check_budget(budget); !ok) return std::unexpected(ok.error());
  return budget;
}

std::string KvBudget::to_string() const {
  switch (unit) {
    case Unit::Ratio:
      return shortest(value);
    case Unit::Tokens:
      return shortest(value) + "tok";
    case Unit::Bytes:
      for (int i = 0; i < kBinaryUnits; ++i) {
        const double count = value / kByteUnits[i].bytes;
        if (count >= 1.0 && count == std::floor(count)) {
          return shortest(count) + std::string(kByteUnits[i].name);
        }
      }
      return shortest(value) + "B";
  }
  return {};
}

Result<Ranker> Ranker::parse(const std::string& text) {
  Ranker ranker;
  if (text == "mass") return ranker;
  if (text == "key_l2") {
    ranker.kind = Kind::KeyL2;
    return ranker;
  }
  const std::size_t colon = text.find(':');
  const std::string name = text.substr(0, colon);
  const auto number = colon == std::string::npos
                          ? std::nullopt
                          : whole_number(std::string_view(text).substr(colon + 1));
  if ((name != "decay" && name != "pnorm") || !number) {
    return bad_input("'" + text + "' (ranker): use mass, decay:G, pnorm:P or key_l2");
  }
  ranker.kind = name == "decay" ? Kind::Decay : Kind::PNorm;
  ranker.parameter = *number;
  if (const Status ok = check_ranker(ranker); !ok) return std::unexpected(ok.error());
  return ranker;
}

std::string Ranker::to_string() const {
  switch (kind) {
    case Kind::Mass:
      return "mass";
    case Kind::Decay:
      return "decay:" + shortest(parameter);
    case Kind::PNorm:
      return "pnorm:" + shortest(parameter);
    case Kind::KeyL2:
      return "key_l2";
  }
  return {};
}

Status CacheConfig::validate() const {
  if (policy.empty()) return bad_input("'' (policy): name a policy");
  if (Status ok = check_budget(budget); !ok) return ok;
  if (Status ok = check_int("n_sink", n_sink, 0, 1 << 20); !ok) return ok;
  if (Status ok = check_int("n_local", n_local, 0, 1 << 24); !ok) return ok;
  if (Status ok = check_real("local_share", local_share, local_share >= 0.0 && local_share <= 0.9,
                             "from 0 to 0.9 (90%)");
      !ok) {
    return ok;
  }
  if (Status ok = check_int("window", window, 1, kMaxWindow); !ok) return ok;
  if (Status ok = check_real("quant_share", quant_share, quant_share >= 0.0 && quant_share <= 1.0,
                             "from 0 to 1");
      !ok) {
    return ok;
  }
  if (quant_bits != 2 && quant_bits != 3 && quant_bits != 4 && quant_bits != 8) {
    return bad_input(option("quant_bits", std::to_string(quant_bits)) + "use 2, 3, 4 or 8");
  }
  return check_ranker(ranker);
}

Status parse_local(const std::string& text, CacheConfig& config) {
  std::string_view unit;
  const auto number = take_number(text, unit);
  const bool percent = unit == "%";
  if (!number || !(unit.empty() || percent) || (!percent && *number != std::floor(*number)) ||
      *number < 0.0 || *number > (percent ? 90.0 : double{1 << 24})) {
    return bad_input("'" + text +
                     "' (local): use a number of tokens (32) or a share of the budget up to 90% "
                     "(25%)");
  }
  if (percent) {
    config.local_share = *number / 100.0;
    // 0% means no local tokens, not "use the default".
    if (config.local_share == 0.0) config.n_local = 0;
  } else {
    config.n_local = static_cast<int>(*number);
    config.local_share = 0.0;
  }
  return {};
}

}  // namespace qevict
