#include "streams/tasks.hpp"

#include <algorithm>

namespace tessera::streams {
namespace {

class CopyTask : public Task {
 public:
  CopyTask(const std::byte* from, std::byte* to, std::int64_t bytes)
      : from_(from), to_(to), left_(bytes) {}
  Progress advance() override {
    const std::int64_t n = std::min<std::int64_t>(left_, 1 << 20);
    std::copy_n(from_, n, to_);  // of no bytes, too, which may be nowhere
    from_ += n, to_ += n, left_ -= n;
    return left_ == 0 ? Progress::done : Progress::some;
  }

 private:
  const std::byte* from_;
  std::byte* to_;
  std::int64_t left_;
};

}  // namespace

std::unique_ptr<Task> make_copy_task(const std::byte* from, std::byte* to, std::int64_t bytes) {
  return std::make_unique<CopyTask>(from, to, bytes);
}

}  // namespace tessera::streams
