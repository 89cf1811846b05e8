#!/bin/sh
# A function compiled for one instruction set must not be linkable into code for another: every weak
# (shareable) symbol of the given object files must carry its instruction set's namespace. DW.ref is a
# pointer, to what unwinds the stack.
leaks=$(nm -C "$@" | grep -E '^[0-9a-f]* *[WVu] ' | grep -v -e 'isa_' -e ' V DW\.ref\.')
if [ -n "$leaks" ]; then
  echo "shareable symbols outside the instruction set's namespace:"
  echo "$leaks"
  exit 1
fi
