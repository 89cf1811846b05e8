#include "model/context_parallel.hpp"

#include "model/context_kinds.hpp"
#include "model/shares.hpp"

namespace tessera::model {

using namespace kernels;

void rotate(UnitContext& u, Rope rope, const View& x) {
  const ContextRegion& r = u.context;
  if (!r.cut() || r.by_document) {
    rope.documents = u.micro_batch().positions;
    rope.cached = u.micro_batch().cached;
    if (r.cut()) rope.longest = r.sequence;
    rope.x = x;
    rope.scaling.positions = u.whole_sequence();
    return u.run(rope);
  }
  rope.scaling.positions = u.whole_sequence();
  for_each_own_chunk(u, [&](const OwnChunk& chunk) {
    rope.x = chunk.of(x, r.samples);
    rope.first_position = chunk.first_token;
    u.run(rope);
  });
}

void attend(UnitContext& u, const Attention& a) {
  if (!u.context.cut()) return u.run(a);
  switch (u.context.kind) {
    case ContextKind::ring: return attend_by_ring(u, a);
    case ContextKind::heads: return attend_by_heads(u, a);
    default: return attend_gathered(u, a);
  }
}

void attend_backward(UnitContext& u, const AttentionBackward& a) {
  if (!u.context.cut()) return u.run(a);
  switch (u.context.kind) {
    case ContextKind::ring: return attend_by_ring_backward(u, a);
    case ContextKind::heads: return attend_by_heads_backward(u, a);
    default: return attend_gathered_backward(u, a);
  }
}

}  // namespace tessera::model
