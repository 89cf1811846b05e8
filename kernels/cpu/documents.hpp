// Checks what a table of documents holds. Only a back end that reads it on the host can.
#pragma once

#include "core/view.hpp"

namespace tessera::kernels::cpu {

/// Refuses documents that do not follow one another without gaps through each sample of `tokens`,
/// or that are not the same for all their tokens. An absent table passes.
void check_document_rows(const View& documents, std::int64_t tokens);

/// The same of documents whose begins positions count from: of a sample that is a part of a
/// sequence the first one may begin before it, and the last one end behind it. Positions are below
/// `positions`.
void check_position_rows(const View& documents, std::int64_t tokens, std::int64_t positions);

}  // namespace tessera::kernels::cpu
