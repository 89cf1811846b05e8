// The parts of the page of `tessera report`, in its order.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "deck/machine.hpp"
#include "verbs/report/page.hpp"
#include "verbs/report/record.hpp"

namespace tessera::verbs {

/// Several runs beside each other: a table, their charts over each other, and the deck's keys that
/// differ.
void comparison_part(Page& page, std::span<const RunRecord> runs);

/// One run's charts over its steps, with what happened marked on their axis.
void charts_part(Page& page, const RunRecord& run);

/// One run's starts, with what changed between them, and its logbook.
void starts_part(Page& page, const RunRecord& run);
void logbook_part(Page& page, const RunRecord& run);

/// What a rank holds, by purpose, from the resolved deck on the ranks of the last start. What
/// cannot be known here is said on the page, and added to `missing`.
void memory_part(Page& page, const RunRecord& run, std::vector<std::string>& missing);

/// When each operation of a step ran, predicted above measured, and where a median step's time
/// goes.
void step_part(Page& page, const RunRecord& run, const std::optional<deck::Machine>& machine,
               std::vector<std::string>& missing);

void deck_part(Page& page, const RunRecord& run);

/// A small file of the run directory; nothing where there is none.
std::optional<std::string> file_of(const RunRecord& run, const char* name);

/// The median of what is recorded of the later half of the steps, after what warms up; NaN: none.
double usual(const RunRecord& run, double StepRecord::*member);

/// "done", "killed, or still at work"; how the run ended the last time.
std::string state_of(const RunRecord& run);

/// "2.1 h", "35 min", "12 s".
std::string hours_text(double hours);

}  // namespace tessera::verbs
