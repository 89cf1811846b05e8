#include "kernels/api/heads.hpp"

#include "kernels/api/checks.hpp"
#include "kernels/api/device.hpp"

namespace tessera::kernels {
namespace {

void check_joined(std::int64_t heads, const View& own, const View& shared, const View& joined) {
  check_floats({joined, shared});
  check_same_type({joined, own});
  TESSERA_CHECK(heads > 0 && own.cols() % heads == 0 &&
                    joined.cols() == own.cols() + heads * shared.cols() &&
                    own.rows() == joined.rows() && shared.rows() == joined.rows(),
                "({}, {}) of {} heads and ({}, {}) that they share, joined in ({}, {})", own.rows(),
                own.cols(), heads, shared.rows(), shared.cols(), joined.rows(), joined.cols());
}

}  // namespace

void check(const JoinHeads& a) {
  check_joined(a.heads, a.own, a.shared, a.out);
  check_same_type({a.out, a.shared});
}

void check(const SplitHeads& a) {
  check_joined(a.heads, a.d_own, a.d_shared, a.d);
  check_same_type({a.d_shared.type == DType::f32 ? a.d_shared : a.d, a.d_shared});
}

}  // namespace tessera::kernels
