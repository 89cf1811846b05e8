// Columns that heads share, on a GPU: checks arguments, launches the kernels.
#include "kernels/cuda/heads.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

/// Whether runs of V elements of every head begin where runs of their rows do.
template <int V>
bool wide_heads(std::initializer_list<View> views, std::initializer_list<std::int64_t> columns) {
  bool whole = true;
  for (const std::int64_t n : columns) whole = whole && n % V == 0;
  return whole && wide<V>(views);
}

template <typename T>
void copy_heads(const Context& context, const char* name, const CopyHeadsRun<T>& body,
                std::int64_t rows, std::int64_t columns) {
  map<CopyHeadsRun<T>::V>(context, name, body, rows * body.heads, columns);
}

}  // namespace

void run(const JoinHeads& a, const Context& context) {
  const std::int64_t own = a.own.cols() / a.heads, shared = a.shared.cols(), all = own + shared,
                     rows = a.out.rows();
  with_type(a.out.type, [&]<typename T>() {
    const bool wide = wide_heads<CopyHeadsRun<T>::V>({a.own, a.shared, a.out}, {own, shared});
    copy_heads<T>(context, a.kName,
                  {.from = {rows_of<T>(a.own), own, 0},
                   .to = {rows_of<T>(a.out), all, 0},
                   .heads = a.heads,
                   .wide = wide},
                  rows, own);
    copy_heads<T>(context, a.kName,
                  {.from = {rows_of<T>(a.shared), 0, 0},
                   .to = {rows_of<T>(a.out), all, own},
                   .heads = a.heads,
                   .wide = wide},
                  rows, shared);
  });
}

void run(const SplitHeads& a, const Context& context) {
  const std::int64_t own = a.d_own.cols() / a.heads, shared = a.d_shared.cols(), all = own + shared,
                     rows = a.d.rows();
  with_type(a.d.type, [&]<typename T>() {
    copy_heads<T>(context, a.kName,
                  {.from = {rows_of<T>(a.d), all, 0},
                   .to = {rows_of<T>(a.d_own), own, 0},
                   .heads = a.heads,
                   .wide = wide_heads<CopyHeadsRun<T>::V>({a.d, a.d_own}, {own, shared})},
                  rows, own);
    with_type(a.d_shared.type, [&]<typename G>() {
      using Run = SumHeadsRun<T, G>;
      const Run body{.from = {rows_of<T>(a.d), all, own},
                     .to = rows_of<G>(a.d_shared),
                     .heads = a.heads,
                     .wide = wide_heads<Run::V>({a.d, a.d_shared}, {own, shared})};
      map<Run::V>(context, a.kName, body, rows, shared);
    });
  });
}

}  // namespace tessera::kernels::cuda
