# shellcheck shell=bash
# shellcheck disable=SC2154 # options and paths are set by bootstrap.sh, which sources this
# Processes of nodes, and what they answer.
#
# A node's process is known by its command line, which names the node's own configuration file, and by the
# time it was started. A number in a pid file alone is never signalled.

node_dir() { printf '%s/node-%d\n' "$dir" "$1"; }
node_config() { printf '%s/node-%d/tenure.toml\n' "$dir" "$1"; }
http_port() { say $((base_port + $1)); }
peer_port() { say $((base_port + 10 + $1)); }

# When a process was started, in clock ticks since the boot. Fails if there is none.
started_at() { # pid
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  # The name, in parentheses, may hold anything.
  stat=${stat##*) }
  local fields
  read -r -a fields <<<"$stat"
  # A zombie is not a process that runs.
  [[ ${fields[0]} != Z ]] || return 1
  say "${fields[19]}"
}

# Whether a process is the server with this configuration file.
is_node_process() { # pid config
  grep -qzxF -- "$2" "/proc/$1/cmdline" 2>/dev/null && grep -qzxF -- server "/proc/$1/cmdline" 2>/dev/null
}

# The process of a node, or nothing. Finds one whose pid file was lost, too.
node_pid() { # node
  local config pid_file pid start file candidate
  config=$(node_config "$1")
  pid_file=$(node_dir "$1")/pid
  if [[ -s $pid_file ]]; then
    read -r pid start <"$pid_file" || true
    if is_number "${pid:-x}" && [[ $(started_at "$pid") == "${start:-}" ]] && is_node_process "$pid" "$config"; then
      say "$pid"
      return 0
    fi
  fi
  # One program looks at all processes: a busy machine has hundreds, and one program each takes minutes.
  while IFS= read -r file; do
    candidate=${file//[!0-9]/}
    if is_node_process "$candidate" "$config" && started_at "$candidate" >/dev/null; then
      note_pid "$1" "$candidate"
      say "$candidate"
      return 0
    fi
  done < <(grep -lzxF -- "$config" /proc/[0-9]*/cmdline 2>/dev/null)
  return 0
}

note_pid() { # node pid
  local start
  start=$(started_at "$2") || return 0
  say "$2 $start" | write_whole "$(node_dir "$1")/pid"
}

port_is_taken() { # port
  (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

launch_node() { # node
  local folder config
  folder=$(node_dir "$1")
  config=$(node_config "$1")
  # Descriptor 9 is this script's lock; a node must not hold it.
  setsid nohup "$binary" server --config "$config" </dev/null >>"$folder/log" 2>&1 9>&- &
  local pid=$! tries
  disown "$pid"
  note_pid "$1" "$pid"
  # Until the new process has become the node, its command line is this script's.
  for ((tries = 0; tries < 200; tries++)); do
    if is_node_process "$pid" "$config" || ! started_at "$pid" >/dev/null; then return 0; fi
    sleep 0.01
  done
}

# One HTTP request to a node on loopback. Prints the status and the body; fails if there is no answer.
http_request() { # port method path token_file body
  timeout 5 bash "$here/bootstrap/http_request.sh" "$1" "$2" "$3" "$4" "${5:-}" 2>/dev/null
}

# ready, live or down.
node_health() { # node
  local answer
  answer=$(http_request "$(http_port "$1")" GET '/healthz?ready' '') || {
    say down
    return 0
  }
  case ${answer%%$'\n'*} in
    200) say ready ;;
    *) say live ;;
  esac
}

# What a node itself knows about the cluster, as JSON. Empty if it does not say.
node_view() { # node
  local answer
  answer=$(http_request "$(http_port "$1")" GET /v1/cluster "$dir/secrets/viewer.token") || return 0
  [[ ${answer%%$'\n'*} == 200 ]] || return 0
  say "${answer#*$'\n'}"
}

# A number or truth value of a flat field. JSON without line breaks, as the node writes it.
field() { # json name
  sed -n "s/.*\"$2\":\\([0-9a-z]*\\).*/\\1/p" <<<"$1" | head -n 1
}
