# shellcheck shell=bash
# shellcheck disable=SC2154 # options and paths are set by bootstrap.sh, which sources this
# What everything else stands on: messages, checks of input, files that appear whole, the marker.

readonly MARKER='.tenure-bootstrap'

say() { printf '%s\n' "$*"; }
warn() { printf 'bootstrap: warning: %s\n' "$*" >&2; }
die() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 1
}
# Wrong usage or wrong input: nothing was done.
refuse() {
  printf 'bootstrap: %s\n' "$*" >&2
  exit 2
}

is_number() { [[ $1 =~ ^[0-9]{1,9}$ && ($1 == 0 || $1 != 0*) ]]; }
is_port() { is_number "$1" && (($1 >= 1 && $1 <= 65535)); }

require_tools() {
  local tool
  [[ -r /proc/self/stat ]] || die 'this works on Linux only: it needs /proc'
  for tool in base64 find flock grep nohup od realpath sed setsid sha256sum stat tail timeout; do
    command -v "$tool" >/dev/null || die "$tool is not installed"
  done
}

# Writes standard input to a file that is either there whole or not at all. Mode 0600.
write_whole() { # path
  local path=$1 unfinished
  unfinished=$(mktemp "$path.XXXXXX")
  cat >"$unfinished"
  chmod 0600 -- "$unfinished"
  sync -- "$unfinished"
  mv -f -- "$unfinished" "$path"
}

# As write_whole, but leaves a file with the same content alone.
write_if_changed() { # path
  local path=$1 content
  content=$(cat)
  if [[ -f $path ]] && [[ $(cat -- "$path") == "$content" ]]; then
    return 0
  fi
  printf '%s\n' "$content" | write_whole "$path"
}

# The marker says that this script made a folder, and holds what must never change.
marker_get() { # folder name
  sed -n "s/^$2=//p" "$1/$MARKER" | head -n 1
}
has_marker() { # folder
  [[ -f $1/$MARKER ]] && [[ $(head -n 1 -- "$1/$MARKER") == 'tenure-bootstrap 1' ]]
}
write_marker() { # folder name=value...
  local folder=$1
  shift
  { say 'tenure-bootstrap 1' && printf '%s\n' "$@"; } | write_whole "$folder/$MARKER"
}

# Refuses to take over a folder that holds something else.
claim_folder() { # folder
  local folder=$1
  if has_marker "$folder"; then
    return 0
  fi
  if [[ -e $folder && ! -d $folder ]]; then
    refuse "$folder is not a folder"
  fi
  if [[ -d $folder ]]; then
    local found
    found=$(find "$folder" -mindepth 1 -maxdepth 1 ! -name '.lock' ! -name "$MARKER.*" -print -quit)
    [[ -z $found ]] || refuse "$folder is not empty and was not made by this script (found $found)"
  fi
  mkdir -p -- "$folder"
  chmod 0700 -- "$folder"
}

new_cluster_id() {
  printf 'c-%s\n' "$(head -c 8 /dev/urandom | od -An -v -tx1 | tr -d ' \n')"
}

# Finds the program, or builds it.
find_binary() {
  local built=${CARGO_TARGET_DIR:-$project/target}/release/tenure
  if [[ -n $binary ]]; then
    [[ -f $binary && -x $binary ]] || refuse "--binary $binary is not a program"
    binary=$(realpath -- "$binary")
    return 0
  fi
  if [[ ! -x $built ]]; then
    command -v cargo >/dev/null || die "there is no $built and cargo is not installed; give --binary FILE"
    say 'Building the program (cargo build --release). This takes some minutes the first time.'
    (cd -- "$project" && cargo build --release --locked --bin tenure) || die 'the build failed'
  fi
  binary=$(realpath -- "$built")
}
