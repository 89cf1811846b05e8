// Where bytes belong that are used in a stand-in for the buffer where they live.
#pragma once

#include <map>

#include "plan/ir/plan.hpp"

namespace tessera::plan {

/// Where the bytes of buffers belong that stand in for others: what is copied there and back by
/// fetches and evictions, perhaps in several hops.
class Homes {
 public:
  /// Throws InternalError where a stand-in has two homes.
  explicit Homes(const Plan& plan);

  /// The buffer that a use is of in the end, and which of its bytes.
  BufferUse home_of(BufferUse use) const;
  BufferUse home_of(const View& v) const { return home_of(use_of(v)); }

  /// Whether `v` is `all`, or stands in for it.
  bool is_at(const View& v, const View& all) const {
    return v && same_bytes(home_of(v), home_of(all));
  }

  /// Ops read the newest version of bytes, in whichever stand-in they look for it; and what
  /// persists has it at home when the step ends. Throws InternalError else.
  void check_versions() const;

 private:
  struct Home {
    BufferId buffer = -1;
    std::int64_t distance = 0;  // of bytes there from those of the stand-in
    bool operator==(const Home&) const = default;
  };
  const Copy* copy_of(std::size_t at, OpKind kind) const;
  void set_home(std::size_t at, const View& stand_in, const View& towards);

  const Plan& plan_;
  std::map<BufferId, Home> homes_;
};

}  // namespace tessera::plan
