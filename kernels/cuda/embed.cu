// Embedding on a GPU: checks arguments, sorts places by token, launches the kernels.
#include "kernels/cuda/embed.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/embed_backward.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

template <typename T, typename O>
void embed(const Embed& a, const Context& context) {
  using Run = EmbedRun<T, O>;
  const std::int64_t here = a.token_table.extent(0), tokens = a.tokens.extent(1);
  const Run body{.tokens = a.tokens.as<std::int32_t>(),
                 .table = rows_of<T>(a.token_table),
                 .first_token = a.first_token,
                 .here = here,
                 .vocabulary = a.vocab > 0 ? a.vocab : here,
                 .position = {rows_of<T>(a.position_table), rows_of<O>(a.out), tokens,
                              a.first_position, dropout_mask(a.dropout, tokens, a.out.cols()),
                              wide<Run::V>({a.token_table, a.position_table, a.out})}};
  map<Run::V>(context, a.kName, body, a.out.rows(), a.out.cols());
}

}  // namespace

void run(const Embed& a, const Context& context) {
  check(a);
  with_type(a.token_table.type, [&]<typename T>() {
    if (a.out.type == a.token_table.type) {
      embed<T, T>(a, context);
    } else {
      embed<T, float>(a, context);
    }
  });
}

void run(const AddPositions& a, const Context& context) {
  check(a);
  with_type(a.out.type, [&]<typename T>() {
    using Run = AddPositionsRun<T>;
    const std::int64_t tokens = a.x.extent(1);
    const Run body{.x = rows_of<float>(a.x),
                   .position = {rows_of<T>(a.position_table), rows_of<T>(a.out), tokens,
                                a.first_position, dropout_mask(a.dropout, tokens, a.out.cols()),
                                wide<Run::V>({a.x, a.position_table, a.out})}};
    map<Run::V>(context, a.kName, body, a.out.rows(), a.out.cols());
  });
}

namespace {

/// Sorts into one of the two halves of scratch, and says which.
Places sort_places(const EmbedBackward& a, const PlaceSort& sort, const Context& context) {
  auto* scratch = reinterpret_cast<std::int32_t*>(a.scratch.data);
  Places from{scratch, scratch + sort.places};
  Places to{scratch + 2 * sort.places, scratch + 3 * sort.places};
  std::int32_t* counts = scratch + 4 * sort.places;
  launch(on(context, a.kName, ceil_div(sort.places, kSortThreads), kSortThreads), place_rows_kernel,
         a.tokens.as<std::int32_t>(), sort.places, a.first_token, a.d_token_table.extent(0), from);
  for (int pass = 0; pass < sort.passes; ++pass) {
    launch(on(context, a.kName, sort.tiles, kSortThreads), count_digits_kernel, from.rows,
           sort.places, pass, sort.tiles, counts);
    launch(on(context, a.kName, 1, kScanThreads), scan_counts_kernel, counts,
           PlaceSort::kDigits * sort.tiles);
    launch(on(context, a.kName, sort.tiles, kSortThreads), move_places_kernel, from, sort.places,
           pass, sort.tiles, counts, to);
    std::swap(from, to);
  }
  return from;
}

void clear(const View& x, const char* operation, const Context& context) {
  const View m = x.matrix();
  const auto width = static_cast<std::size_t>(m.cols() * size_of(m.type));
  if (m.elements() == 0) return;
  check_cuda(cudaMemset2DAsync(m.data, static_cast<std::size_t>(m.ld * size_of(m.type)), 0, width,
                               static_cast<std::size_t>(m.rows()), context.queue.stream),
             operation);
}

template <typename T, typename G>
void token_gradients(const EmbedBackward& a, const Places& sorted, const Context& context) {
  constexpr int V = kRun<T, G>;
  const std::int64_t n = a.tokens.elements(), columns = a.d.cols(),
                     slices = ceil_div(columns, 32 * V);
  const TokenGradients<T, G> gradients{
      .d = rows_of<T>(a.d),
      .table = rows_of<G>(a.d_token_table),
      .sorted = sorted,
      .n = n,
      .rows = a.d_token_table.extent(0),
      .columns = columns,
      .slices = slices,
      .dropout = dropout_mask(a.dropout, a.tokens.extent(1), columns),
      .wide = wide<V>({a.d, a.d_token_table})};
  launch(on(context, a.kName, ceil_div(n * slices, kTokenWarps), kTokenThreads),
         token_gradients_kernel<T, G>, gradients);
}

template <typename T, typename G>
void position_gradients(const EmbedBackward& a, const Context& context) {
  using Run = PositionGradientRun<T, G>;
  const std::int64_t tokens = a.tokens.extent(1);
  const Run body{.d = rows_of<T>(a.d),
                 .out = rows_of<G>(a.d_position_table),
                 .samples = a.tokens.extent(0),
                 .tokens = tokens,
                 .dropout = dropout_mask(a.dropout, tokens, a.d.cols()),
                 .add = a.position_write == Write::add,
                 .wide = wide<Run::V>({a.d, a.d_position_table})};
  map<Run::V>(context, a.kName, body, a.d_position_table.rows(), a.d.cols());
}

}  // namespace

void run(const EmbedBackward& a, const Context& context) {
  check(a);
  const PlaceSort sort(a);
  TESSERA_CHECK(sort.places <= 0x7fffffff && a.d_token_table.extent(0) < 0x7fffffff,
                "{} places of a table of {} rows", sort.places, a.d_token_table.extent(0));
  // Rows of an overwritten table are cleared and added to, since most of them have no token.
  if (a.token_write == Write::overwrite) clear(a.d_token_table, a.kName, context);
  const Places sorted = sort_places(a, sort, context);
  with_type(a.d.type, [&]<typename T>() {
    with_type(a.d_token_table.type,
              [&]<typename G>() { token_gradients<T, G>(a, sorted, context); });
    if (!a.d_position_table) return;
    with_type(a.d_position_table.type, [&]<typename G>() { position_gradients<T, G>(a, context); });
  });
}

}  // namespace tessera::kernels::cuda
