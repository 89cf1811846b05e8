#!/bin/sh
# A function compiled for one instruction set must not be linkable into code for another: every weak
# (shareable) symbol of the given object files must carry its instruction set's namespace.
leaks=$(nm -C "$@" | grep -E '^[0-9a-f]* *[WVu] ' | grep -v 'isa_')
if [ -n "$leaks" ]; then
  echo "shareable symbols outside the instruction set's namespace:"
  echo "$leaks"
  exit 1
fi
