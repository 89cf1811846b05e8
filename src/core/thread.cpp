#include "core/thread.hpp"

#include <atomic>
#include <chrono>
#include <memory>

namespace tessera {

void try_within_a_second(std::function<void()> work) {
  using namespace std::chrono_literals;
  const auto done = std::make_shared<std::atomic<bool>>(false);
  start_thread("last words", [done, work = std::move(work)] {
    work();
    *done = true;
  }).detach();
  const auto until = std::chrono::steady_clock::now() + 1s;
  while (!*done && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(2ms);
}

}  // namespace tessera
