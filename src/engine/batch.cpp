#include "engine/batch.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace qevict {

Status BatchImpl::check(const BatchInput& input) const {
  if (input.session == nullptr) return bad_input("a sequence has no session (batch): give one");
  // SessionImpl is the only Session there is.
  const auto& session = static_cast<const SessionImpl&>(*input.session);
  if (session.context().forward != context_.forward) {
    return bad_input("the session belongs to another engine (batch): use sessions of one engine");
  }
  if (std::ranges::find(sessions_, &session) != sessions_.end()) {
    return bad_input("the session is in the batch twice (batch): give each session once");
  }
  return session.check_step(input.token);
}

void BatchImpl::admit(std::span<const BatchInput> inputs) {
  results_.assign(inputs.size(), Row());
  sessions_.clear();
  attentions_.clear();
  tokens_.clear();
  index_.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (Status s = check(inputs[i]); !s) {
      results_[i] = std::unexpected(s.error());
      continue;
    }
    auto* session = static_cast<SessionImpl*>(inputs[i].session);
    try {
      session->reserve_step();
    } catch (const std::bad_alloc&) {
      results_[i] = runtime_error("out of memory (a sequence of the batch): lower --kv-budget");
      continue;
    }
    sessions_.push_back(session);
    attentions_.push_back(&session->attention());
    tokens_.push_back(inputs[i].token);
    index_.push_back(i);
  }
}

Status BatchImpl::reserve() {
  const std::size_t n_vocab = static_cast<std::size_t>(context_.model->hparams().n_vocab);
  try {
    attention_.set_sequences(attentions_);
    logits_.resize(sessions_.size() * n_vocab);
    return context_.forward->plan_decode(static_cast<int>(sessions_.size()));
  } catch (const std::bad_alloc&) {
    return runtime_error("out of memory (a batch step): use a smaller batch");
  }
}

void BatchImpl::fail_all(const Error& error) {
  for (const std::size_t i : index_) results_[i] = std::unexpected(error);
}

std::span<const Result<std::span<const float>>> BatchImpl::decode(
    std::span<const BatchInput> inputs) {
  admit(inputs);
  if (sessions_.empty()) return results_;
  if (Status s = reserve(); !s) {
    fail_all(s.error());
    return results_;
  }
  for (SessionImpl* session : sessions_) session->begin_step();
  if (Status s = context_.forward->decode(tokens_, attention_, logits_.data()); !s) {
    fail_all(s.error());
    return results_;
  }
  const auto start = std::chrono::steady_clock::now();
  if (Status s = finish(); !s) fail_all(s.error());
  routing_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return results_;
}

void BatchImpl::finish_row(std::size_t row) {
  const std::size_t n_vocab = static_cast<std::size_t>(context_.model->hparams().n_vocab);
  const std::span<const float> logits(logits_.data() + row * n_vocab, n_vocab);
  Row& result = results_[index_[row]];
  if (Status s = sessions_[row]->end_step(logits); !s) {
    result = std::unexpected(s.error());
  } else {
    result = logits;
  }
}

Status BatchImpl::finish() {
  claimed_ = 0;
  const auto share = [](void* data, int, int) noexcept {
    auto& self = *static_cast<BatchImpl*>(data);
    const std::size_t n = self.sessions_.size();
    for (std::size_t row = self.claimed_++; row < n; row = self.claimed_++) {
      if (!self.sessions_[row]->traced()) self.finish_row(row);
    }
  };
  if (sessions_.size() == 1) {
    share(this, 0, 1);
  } else if (Status s = context_.forward->on_all_threads(share, this); !s) {
    return s;
  }
  // Whoever traces is told by this thread alone.
  for (std::size_t row = 0; row < sessions_.size(); ++row) {
    if (sessions_[row]->traced()) finish_row(row);
  }
  return {};
}

double BatchImpl::routing_seconds() {
  const double seconds = routing_seconds_;
  routing_seconds_ = 0.0;
  return seconds;
}

}  // namespace qevict
