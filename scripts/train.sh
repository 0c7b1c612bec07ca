#!/usr/bin/env bash
# scripts/train.sh [train_lm options]: set-up, build, training of a language model, generation from it.
#
# The training text is the King James Bible unless --data names other files, and the checkpoint goes to data/model.h5
# unless --save names another.
source "$(dirname "$0")/common.sh"

# option NAME DEFAULT argument...: the value of --NAME among the arguments, as "--NAME value" or "--NAME=value".
option() {
  local name=$1 value=$2
  shift 2
  while [ $# -gt 0 ]; do
    case $1 in
      --"$name") value=${2:-} ;;
      --"$name"=*) value=${1#*=} ;;
    esac
    shift
  done
  printf '%s' "$value"
}

# The whole text, a verse a line. Written under another name first, so that a stopped run leaves no half of it.
write_text() {
  if [ -s data/bible.txt ]; then
    echo "data/bible.txt is there"
    return
  fi
  bible -l100000 gen1:1-rev22:21 >data/bible.txt.part && mv data/bible.txt.part data/bible.txt && wc -c data/bible.txt
}

# Questions about the options need no training.
if asks_for_help "$@" && [ -x build/examples/train_lm ]; then exec build/examples/train_lm --help; fi
help_if_asked "$@"

arguments=("$@")
data=$(option data '' "$@")
[ -n "$data" ] || arguments+=(--data "$root/data/bible.txt")
checkpoint=$(option save "$root/data/model.h5" "$@")
[ -n "$(option save '' "$@")" ] || arguments+=(--save "$checkpoint")

scripts/setup.sh train
step "Configure" cmake --preset release
step "Build" cmake --build --preset release --target train_lm generate
mkdir -p data
[ -n "$data" ] || step "Training text" write_text
cd "$called_from"  # the arguments name files from there
step "Training" "$root/build/examples/train_lm" "${arguments[@]}"
step "Generation" "$root/build/examples/generate" --checkpoint "$checkpoint" --prompt "And God said" --tokens 400 --temperature 0.7
say "All of it took $SECONDS s"
