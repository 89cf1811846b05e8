// Embedding on a GPU: checks arguments, sorts places by token, launches the kernels.
#include "kernels/cuda/embed.cuh"

#include "kernels/common/types.hpp"
#include "kernels/cuda/embed_backward.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/operations.hpp"

namespace tessera::kernels::cuda {
namespace {

SampleDocuments documents_of(const View& documents) {
  if (!documents) return {};
  return {documents.as<std::int32_t>(), documents.extent(1)};
}

/// What embedding does behind the rows that runs of V elements have.
template <typename P, typename O, int V, typename Operation>
PositionRun<P, O> positions_of(const Operation& a, std::int64_t tokens, const View& x) {
  return {.table = rows_of<P>(a.position_table),
          .out = rows_of<O>(a.out),
          .tokens = tokens,
          .first_position = a.first_position,
          .documents = documents_of(a.documents),
          .cached = reinterpret_cast<const CachedSample*>(a.cached.data),
          .dropout = dropout_mask(a.dropout, tokens, a.out.cols()),
          .wide = wide<V>({x, a.position_table, a.out})};
}

template <typename T, typename O>
void embed(const Embed& a, const Context& context) {
  using Run = EmbedRun<T, O>;
  const std::int64_t here = a.token_table.extent(0);
  const Run body{.tokens = a.tokens.as<std::int32_t>(),
                 .table = rows_of<T>(a.token_table),
                 .first_token = a.first_token,
                 .here = here,
                 .vocabulary = a.vocab > 0 ? a.vocab : here,
                 .position = positions_of<T, O, Run::V>(a, a.tokens.extent(1), a.token_table)};
  map<Run::V>(context, a.kName, body, a.out.rows(), a.out.cols());
}

}  // namespace

void run(const Embed& a, const Context& context) {
  with_type(a.token_table.type, [&]<typename T>() {
    if (a.out.type == a.token_table.type) {
      embed<T, T>(a, context);
    } else {
      embed<T, float>(a, context);
    }
  });
}

void run(const AddPositions& a, const Context& context) {
  with_type(a.out.type, [&]<typename T>() {
    using Run = AddPositionsRun<T>;
    const Run body{.x = rows_of<float>(a.x),
                   .position = positions_of<T, T, Run::V>(a, a.x.extent(1), a.x)};
    map<Run::V>(context, a.kName, body, a.out.rows(), a.out.cols());
  });
}

namespace {

void clear(const View& x, const char* operation, const Context& context) {
  const View m = x.matrix();
  const auto width = static_cast<std::size_t>(m.cols() * size_of(m.type));
  if (m.elements() == 0) return;
  check_cuda(cudaMemset2DAsync(m.data, static_cast<std::size_t>(m.ld * size_of(m.type)), 0, width,
                               static_cast<std::size_t>(m.rows()), context.queue.stream),
             operation);
}

/// Adds the gradients of places to the table's rows that they name.
void row_gradients(const EmbedBackward& a, const View& table, const PlaceRows& rows, Write write,
                   const Context& context) {
  const PlaceSort sort(a.tokens.elements(), table.extent(0));
  // Rows of an overwritten table are cleared and added to, since many of them have no place.
  if (write == Write::overwrite) clear(table, a.kName, context);
  const Places sorted = sort_places(a.kName, a.scratch, sort, rows, context);
  const std::int64_t n = sort.places, columns = a.d.cols();
  with_type(a.d.type, [&]<typename T>() {
    with_type(table.type, [&]<typename G>() {
      const std::int64_t slices = ceil_div(columns, 32 * kRowRun);
      const RowGradients<T, G> gradients{
          .d = rows_of<T>(a.d),
          .table = rows_of<G>(table),
          .sorted = sorted,
          .n = n,
          .rows = table.extent(0),
          .columns = columns,
          .slices = slices,
          .dropout = dropout_mask(a.dropout, a.tokens.extent(1), columns),
          .wide = wide<kRowRun>({a.d, table})};
      launch(on(context, a.kName, ceil_div(n * slices, kRowWarps), kRowThreads),
             a.dropout ? row_gradients_kernel<T, G, true> : row_gradients_kernel<T, G, false>,
             gradients);
    });
  });
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
  row_gradients(a, a.d_token_table, token_rows(a), a.token_write, context);
  if (!a.d_position_table) return;
  if (a.documents) {
    return row_gradients(a, a.d_position_table, position_rows(a), a.position_write, context);
  }
  with_type(a.d.type, [&]<typename T>() {
    with_type(a.d_position_table.type, [&]<typename G>() { position_gradients<T, G>(a, context); });
  });
}

}  // namespace tessera::kernels::cuda
