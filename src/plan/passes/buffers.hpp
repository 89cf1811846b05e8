// What passes use to add to a plan: buffers, staging, ops between those that are there.
#pragma once

#include <string>
#include <vector>

#include "core/error.hpp"
#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// The error for a step that one plan cannot hold.
DeckError too_long(const PlanShape& shape);

/// Inserts ops before given positions; keeps the rest in order.
class Insertions {
 public:
  void before(std::size_t position, Op op) { inserted_.push_back({position, std::move(op)}); }
  void apply(std::vector<Op>& ops);

 private:
  struct At {
    std::size_t position;
    Op op;
  };
  std::vector<At> inserted_;
};

BufferId add_buffer(Plan& plan, Buffer buffer);
/// A buffer on the device that lives within the step.
BufferId add_buffer(Plan& plan, std::string name, BufferPurpose purpose, std::int64_t bytes);
/// Makes the buffer at least so large.
void enlarge_buffer(Plan& plan, BufferId id, std::int64_t bytes);
View buffer_view(BufferId id, DType type, std::int64_t elements);

/// A copy between locations, on the stream for its way: a fetch to the device, or an evict from it.
/// `about`: its unit, micro-batch and visit.
Op copy_op(const Plan& plan, Op about, const Copy& copy);

/// A staging buffer. It serves ops of one stream one after another, and is as large as the largest
/// view of it.
class Staging {
 public:
  explicit Staging(const char* name, BufferPurpose purpose = BufferPurpose::staging)
      : name_(name), purpose_(purpose) {}
  View view(Plan& plan, std::int64_t bytes);

 private:
  const char* name_;
  BufferPurpose purpose_;
  BufferId id_ = -1;
};

/// Two staging buffers in turns, between two streams: the one fills one of them while the other
/// empties the other.
class TurnStaging {
 public:
  explicit TurnStaging(const char* name) : turns_{Staging(name), Staging(name)} {}
  View next(Plan& plan, std::int64_t bytes) {
    std::swap(turns_[0], turns_[1]);
    return turns_[0].view(plan, bytes);
  }

 private:
  std::array<Staging, 2> turns_;
};

}  // namespace tessera::plan
