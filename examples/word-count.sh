#!/bin/sh
# Counts words, one shard of a run at a time. See word-count.yaml.
#
# How it survives a crash at any line:
#
# - All shards of a run work on one list of files, made once: the first shard to link it wins.
# - A shard writes to a file that has its fencing token in its name. Each owner of the shard has a
#   token of its own, so an owner from the past, however late it wakes up, writes to a file that
#   nobody reads any more.
# - The order is: append the counts, make them durable, commit the checkpoint. The checkpoint says
#   how many files are counted, and its state says in which part they are. What was appended after
#   the last commit is left behind by the next owner.
# - The report is made from finished parts, in a temporary file that is then renamed. Two shards
#   that make it at once make the same one.
#
# All executors that may get a shard must see the same folder OUT.
set -eu
# The same order and the same words on every machine, whatever its language.
LC_ALL=C
export LC_ALL

# The executor sets these. Started by hand, the script says so.
: "${TENURE_JOB:?this runs as a task of Tenure}" "${TENURE_RUN_ID:?}" "${TENURE_SCHEDULED_AT:?}"
: "${TENURE_SHARD:?}" "${TENURE_SHARD_COUNT:?}" "${TENURE_FENCING_TOKEN:?}"
: "${TENURE_CHECKPOINT_OFFSET:?}" "${TENURE_CHECKPOINT_FILE:?}" "${TENURE_EXAMPLES:?}"

tenure=${TENURE_BIN:-tenure}
root=${ROOT:-$TENURE_EXAMPLES/../docs}
out=${OUT:-$TENURE_EXAMPLES/../word-count}
batch=${BATCH:-1}
pause=${PAUSE:-0}
keep_runs=5

shard=$TENURE_SHARD
token=$TENURE_FENCING_TOKEN
# Run numbers begin again in a new cluster, so the instant is part of the name. The names sort by it.
due=$(printf '%s' "$TENURE_SCHEDULED_AT" | tr -cd '0-9')
work=$out/run-$due-$TENURE_RUN_ID
list=$work/files
part=$work/part-$shard.$token

# Waits until the files named are on the disk.
durable() {
  sync "$@" 2>/dev/null || sync
}

# Puts a file in its place as a whole: $1 becomes $2.
replace() {
  durable "$1"
  mv -f "$1" "$2"
}

# Commits that the first $1 files of this shard are counted, in the part with this owner's token.
# A commit without an answer may be made again. Any other refusal ends the task.
commit() {
  tries=0
  while :; do
    status=0
    printf '%s\n' "$token" | "$tenure" task checkpoint --offset "$1" --state - || status=$?
    case $status in
      0) return 0 ;;
      5 | 8) tries=$((tries + 1)) ;;
      *) exit "$status" ;;
    esac
    if [ "$tries" -ge 10 ]; then exit "$status"; fi
    sleep 1
  done
}

# The list of files, made once for the run.
make_list() {
  if [ -e "$list" ]; then return 0; fi
  mine=$list.$shard.$token
  (cd "$root" && find . -type f \
    \( -name '*.md' -o -name '*.rs' -o -name '*.sh' -o -name '*.toml' -o -name '*.yaml' \) \
    ! -path '*/target/*' ! -path '*/.*/*' -print) | sort >"$mine"
  durable "$mine"
  # A link does not replace: of several shards, the first one decides.
  ln "$mine" "$list" 2>/dev/null || [ -e "$list" ]
  rm -f "$mine"
}

# This owner's part begins with what the checkpoint says is counted.
make_part() {
  fresh=$part.new
  : >"$fresh"
  if [ "$offset" -gt 0 ]; then
    former=$(cat "$TENURE_CHECKPOINT_FILE")
    head -n "$offset" "$work/part-$shard.$former" >"$fresh"
  fi
  replace "$fresh" "$part"
}

# The files of this shard: every TENURE_SHARD_COUNT-th one.
own_files() {
  awk -v shard="$shard" -v count="$TENURE_SHARD_COUNT" '(NR - 1) % count == shard' "$list"
}

# Counts what is left.
count_files() {
  done_files=$offset
  own_files | tail -n "+$((offset + 1))" >"$part.todo"
  while IFS= read -r file; do
    # A file that went away since the list was made has no words.
    # Words are what blanks part; `wc` would leave out those it cannot print in this locale.
    words=$(awk '{ words += NF } END { print words + 0 }' 2>/dev/null <"$root/$file" || echo 0)
    printf '%d\t%s\n' "$words" "$file" >>"$part"
    done_files=$((done_files + 1))
    if [ $((done_files % batch)) -eq 0 ]; then
      durable "$part"
      commit "$done_files"
    fi
    "$tenure" task progress "$done_files"
    sleep "$pause"
  done <"$part.todo"
  durable "$part"
  commit "$done_files"
  rm -f "$part.todo"
}

# Whether every shard has finished.
all_finished() {
  other=0
  while [ "$other" -lt "$TENURE_SHARD_COUNT" ]; do
    if [ ! -e "$work/finished-$other" ]; then return 1; fi
    other=$((other + 1))
  done
}

# One report out of all parts. The same parts give the same report, whoever makes it.
make_report() {
  fresh=$work/report.$shard.$token
  {
    echo "Words per file, run $TENURE_RUN_ID of $TENURE_JOB, due at $TENURE_SCHEDULED_AT"
    other=0
    while [ "$other" -lt "$TENURE_SHARD_COUNT" ]; do
      cat "$work/part-$other.$(cat "$work/finished-$other")"
      other=$((other + 1))
    done | sort -k 2 | awk -F '\t' '
      { printf "%8d  %s\n", $1, $2; words += $1 }
      END { printf "%8d  in %d files\n", words, NR }'
  } >"$fresh"
  replace "$fresh" "$out/report.txt"
}

# Old runs go away; a few are kept to look at.
forget_old_runs() {
  for folder in "$out"/run-*; do
    echo "${folder##*/run-}"
  done | sort -r | tail -n "+$((keep_runs + 1))" | while IFS= read -r old; do
    rm -rf "$out/run-$old"
  done
}

umask 077
mkdir -p "$work"
make_list
offset=$TENURE_CHECKPOINT_OFFSET
if [ "$offset" -gt 0 ]; then echo "going on after $offset files"; fi
make_part
count_files
printf '%s\n' "$token" >"$part.finished"
replace "$part.finished" "$work/finished-$shard"
echo "shard $shard has counted $done_files files"
if all_finished; then
  make_report
  forget_old_runs
  tail -n 1 "$out/report.txt"
fi
