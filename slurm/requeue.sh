# Sourced by batch scripts. One function of it is theirs:
#   train DECK [--set section.key=value]...
# trains as one Slurm job that starts again until the run is done, and ends the script. README.md
# says what it decides; each decision is one line in the job's log.
# shellcheck shell=bash
set -uo pipefail

readonly margin=${TESSERA_MARGIN:-120} # seconds that a last step and a checkpoint may take
readonly fruitless_requeues=3          # in a row, without a new checkpoint
readonly never=9999999999              # seconds since 1970

say() { echo "$(date '+%F %T') job $SLURM_JOB_ID: $*"; }

stop() { # CODE WORDS...
  say "stopped: ${*:2}"
  exit "$1"
}

meaning() { # of an exit code
  case $1 in
    2) echo "deck or usage" ;;
    3) echo "data or checkpoint unusable" ;;
    4) echo "out of memory" ;;
    5) echo "communication or peer failure" ;;
    6) echo "non-finite steps" ;;
    7) echo "I/O" ;;
    70) echo "internal error" ;;
    85) echo "stopped on request" ;;
    129 | 1[3-9]? | 2??) echo "signal $(kill -l "$1" 2>/dev/null || echo $(($1 - 128)))" ;;
    *) echo "not tessera's" ;;
  esac
}

newest_step() { # DIRECTORY of a run: the step of its newest checkpoint, 0 without one
  local manifest step newest=0
  for manifest in "$1"/checkpoints/step_*/manifest.json; do
    step=${manifest%/manifest.json} step=${step##*/step_}
    [[ -e $manifest && $step =~ ^[0-9]+$ ]] && ((10#$step > newest)) && newest=$((10#$step))
  done
  echo "$newest"
}

# Each start of the job leaves "JOB STEP" in the run directory, so that a job killed with its batch
# script is counted too.
starts_at() { # FILE STEP: this job's latest starts, in a row, from this step
  awk -v job="$SLURM_JOB_ID" -v step="$2" \
    '$1 == job { n = $2 == step ? n + 1 : 0 } END { print n + 0 }' "$1"
}

requeue() { # CODE WORDS...
  trap '' TERM # which comes as soon as Slurm has the job in its queue again
  scontrol requeue "$SLURM_JOB_ID" ||
    stop "$1" "cannot requeue: submit with --requeue, or again by hand; ${*:2}"
  say "requeued: ${*:2}"
  exit "$1"
}

# A node that Slurm has lost may be at work all the same: what it does is no longer this job's.
taken_away() {
  local job
  job=$(scontrol show job --oneliner "$SLURM_JOB_ID") || return 1
  [[ $job == *" JobState=NODE_FAIL "* ]] && return
  [[ $job =~ \ Restarts=([0-9]+)\  ]] && ((BASH_REMATCH[1] != ${SLURM_RESTART_COUNT:-0}))
}

# For the same reason an earlier start of this job may still have the run directory: it is asked to
# stop with a checkpoint. Any other holder is for the program to refuse, by name.
take_over() { # RUN_DIRECTORY
  [[ -e $1/lock ]] || return 0
  flock --nonblock "$1/lock" true && return
  grep --quiet --line-regexp ".*, Slurm job $SLURM_JOB_ID" "$1/lock" || return 0
  say "an earlier start is still at work ($(<"$1/lock")): asked to stop"
  touch "$1/stop"
  flock --timeout "$margin" "$1/lock" true
  local free=$?
  rm -f "$1/stop"
  return "$free"
}

decide() { # CODE STEP_AT_START RUN_DIRECTORY
  local code=$1 before=$2 step starts why
  taken_away && stop "$code" "Slurm has lost a node of this start, and the job goes on without it"
  step=$(newest_step "$3")
  ((code == 0)) && say "done, newest checkpoint step $step" && exit 0
  [[ -s $3/ended ]] && read -r code why <"$3/ended"
  why="exit $code ($(meaning "$code"))${why:+: $why}, newest checkpoint step $step (was $before)"
  [[ -s $3/ended || -f $3/stop ]] && stop "$code" "$why"
  [[ $ended_by_slurm ]] && stop "$code" "$why; Slurm ended the job before its time"
  ((code == 85 || code == 5 || code >= 128)) || stop "$code" "$why"
  ((step > before)) && requeue "$code" "$why"
  starts=$(starts_at "$3/starts" "$step")
  ((starts <= fruitless_requeues)) || stop "$code" "$why, $starts starts in a row without a new one"
  requeue "$code" "$why, fruitless start $starts; $fruitless_requeues of them are requeued"
}

train() { # DECK [--set section.key=value]...
  local program run step gpus ranks now end=$never deadline=() code
  srun=           # the process that USR1 is passed on to
  signalled=      # a signal has interrupted wait
  ended_by_slurm= # cancelled, preempted or requeued by hand: not for this script to requeue
  trap 'signalled=1; [[ $srun ]] && kill -USR1 "$srun"' USR1
  trap 'signalled=1; (($(date +%s) < end)) && ended_by_slurm=1' TERM
  end=$(SLURM_TIME_FORMAT=%s squeue -h -j "$SLURM_JOB_ID" -o %e)
  now=$(date +%s)
  if [[ $end =~ ^[0-9]+$ ]]; then
    ((end - margin > now)) || stop 2 "its time ends in $((end - now)) s, of which" \
      "TESSERA_MARGIN=$margin s are kept for the last checkpoint: ask for more --time"
    deadline=(--set "run.deadline=$((end - margin))")
  else
    say "Slurm names no end of this job ($end): no run.deadline"
    end=$never
  fi

  local machine=$here/machines/${TESSERA_MACHINE:-generic}/environment
  # shellcheck disable=SC1090
  { [[ -f $machine ]] && source "$machine"; } || stop 2 "TESSERA_MACHINE=${TESSERA_MACHINE:-generic} has no $machine"
  program=${TESSERA:-$(command -v tessera)}
  [[ $program ]] || for program in "$here"/../{build,../../bin}/tessera; do
    [[ -e $program ]] && break # of a checkout, or installed
  done
  # A shipped deck, from a directory that has none of this name.
  [[ -e $1 || ! -e $here/../$1 ]] || set -- "$(realpath "$here/../$1")" "${@:2}"
  gpus=${SLURM_GPUS_PER_NODE:-} gpus=${gpus##*:} # may be TYPE:NUMBER
  ranks=${SLURM_NTASKS_PER_NODE:-not given}
  [[ -z $gpus || $gpus == "$ranks" ]] ||
    stop 2 "GPUs a node: $gpus, ranks a node: $ranks: sbatch --ntasks-per-node=$gpus"

  # The same deck and settings, checked here without MPI, say where the run keeps its checkpoints.
  run=$("$program" check "$1" --ranks "$SLURM_NTASKS" "${@:2}") ||
    stop $? "tessera check refuses $*"
  run=$(sed -n 's/^run directory //p' <<<"$run")
  mkdir -p "$run" || stop 7 "cannot make the run directory $run"
  step=$(newest_step "$run")
  echo "$SLURM_JOB_ID $step" >>"$run/starts" || stop 7 "cannot write $run/starts"
  take_over "$run" || decide 5 "$step" "$run"
  rm -f "$run/ended" # of an earlier run
  step=$(newest_step "$run")
  say "start $((${SLURM_RESTART_COUNT:-0} + 1)) on $SLURM_JOB_NODELIST, $SLURM_NTASKS ranks:" \
    "$run, newest checkpoint step $step"

  srun --kill-on-bad-exit=0 "$program" train "$1" "${deadline[@]}" "${@:2}" &
  srun=$!
  [[ $signalled ]] && sleep 2 && kill -USR1 "$srun" # it came while the deck was checked
  while signalled=; do
    wait "$srun"
    code=$?
    [[ $signalled ]] || break
  done
  decide "$code" "$step" "$run"
}

here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
