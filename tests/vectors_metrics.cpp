// Diagnostics against the full cache's attention: ops fmm, churn, qsa_rq and global_lir.
#include <cmath>

#include "eval/diagnostics.h"
#include "vectors_units.h"

namespace qevict::vectors {
namespace {

using nlohmann::json;

// null in the vectors is "not defined": NaN here.
void check_value(Check& check, const std::string& name, double got, const json& expected,
                 Tolerance tolerance) {
  if (expected.is_null() || std::isnan(got)) {
    if (expected.is_null() != std::isnan(got)) {
      check.fail(name + " is " + std::to_string(got) + ", not " + expected.dump());
    }
    return;
  }
  check.close(name, got, expected.get<double>(), tolerance);
}

std::vector<double> read_doubles(const json& value) {
  const std::vector<float> floats = read_array(value).floats();
  return {floats.begin(), floats.end()};
}

std::vector<WindowId> read_windows(const json& value) {
  const std::vector<std::int64_t> ids = read_array(value).ints();
  return {ids.begin(), ids.end()};
}

}  // namespace

void check_missed_mass(const json& c, Check& check) {
  const json& p = c.at("params");
  const int horizon = p.at("horizon");
  const int event_step = p.at("event_step");
  const int n_sink = p.at("S");
  const Array future = read_array(c.at("inputs").at("future"));
  const std::vector<float> mass = future.floats();
  const std::vector<std::int64_t> accessible = read_array(c.at("inputs").at("accessible")).ints();
  std::vector<Place> places;
  for (int i = 0; i < p.at("n_event").get<int>(); ++i) {
    const Place held = i < n_sink ? Place::Sink : Place::Local;
    places.push_back(accessible.at(i) != 0 ? held : Place::Evicted);
  }
  const StepAttention attention{mass.data(), static_cast<int>(future.dim(0)),
                                static_cast<int>(future.dim(1))};
  const PlaceMass sums = future_mass(attention, event_step, horizon, places);
  const json& e = c.at("expected");
  const Tolerance tolerance = read_tolerance(c.at("tolerance"), "all");
  const double missed = missed_share(sums);
  check_value(check, "fmm", missed, e.at("fmm"), tolerance);
  check_value(check, "fmm_with_sink", missed_share(sums, Sinks::Included), e.at("fmm_with_sink"),
              tolerance);
  const bool whole = has_full_horizon(attention, event_step, horizon);
  check_value(check, "fmm_censored", whole ? missed : NAN, e.at("fmm_censored"), tolerance);
}

void check_churn(const json& c, Check& check) {
  const json& inputs = c.at("inputs");
  check_value(check, "churn",
              selection_churn(read_windows(inputs.at("a")), read_windows(inputs.at("b"))),
              c.at("expected").at("churn"), read_tolerance(c.at("tolerance"), "all"));
}

void check_agreement(const json& c, Check& check) {
  const json& inputs = c.at("inputs");
  const MassAgreement got =
      mass_agreement(read_doubles(inputs.at("policy")), read_doubles(inputs.at("full")));
  const json& e = c.at("expected");
  const Tolerance tolerance = read_tolerance(c.at("tolerance"), "all");
  check_value(check, "qsa", got.cosine, e.at("qsa"), tolerance);
  check_value(check, "rq", got.ratio, e.at("rq"), tolerance);
  check_value(check, "rq_overlap", got.overlap, e.at("rq_overlap"), tolerance);
}

void check_revivals(const json& c, Check& check) {
  const Array x = read_array(c.at("inputs").at("x"));
  std::vector<WindowState> states;
  for (const std::int64_t value : x.ints()) states.push_back(static_cast<WindowState>(value));
  for (const int m : c.at("params").at("m")) {
    const std::string key = "m" + std::to_string(m);
    const json& e = c.at("expected").at(key);
    const Revivals got = count_revivals(states, static_cast<int>(x.dim(1)), m);
    check.equal(key + ".eligible", got.eligible, e.at("eligible"));
    check.equal(key + ".rescued", got.rescued, e.at("rescued"));
    check_value(check, key + ".lir", got.rate(), e.at("lir"),
                read_tolerance(c.at("tolerance"), "lir"));
    check_value(check, key + ".ttr_median", got.median_time(), e.at("ttr_median"),
                read_tolerance(c.at("tolerance"), "ttr_median"));
  }
}

}  // namespace qevict::vectors
