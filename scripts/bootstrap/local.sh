# shellcheck shell=bash
# shellcheck disable=SC2154 # options and paths are set by bootstrap.sh, which sources this
# A cluster of real processes on loopback.
#
# DIR/.tenure-bootstrap   what never changes: cluster id, number of nodes, ports
# DIR/initialized         the cluster was initialized; from now on a node without data is a loss
# DIR/secrets/            cluster.secret, ROLE.token, tokens
# DIR/node-N/             tenure.toml, data/, log, pid, provisioned

require_cluster() {
  has_marker "$dir" || refuse "there is no cluster in $dir (make one with: $here/bootstrap.sh local --dir $dir)"
  nodes=${nodes:-$(marker_get "$dir" nodes)}
  base_port=${base_port:-$(marker_get "$dir" base_port)}
  cluster_id=$(marker_get "$dir" cluster_id)
}

# One bootstrap at a time. The lock ends with this process.
take_lock() {
  exec 9>"$dir/.lock"
  flock -n 9 || die "another bootstrap works in $dir"
}

local_up() {
  check_choices
  find_binary
  settle_cluster
  take_lock
  make_secrets "$dir/secrets" "$(any_node_provisioned)"
  local node started=() failed=0
  for ((node = 1; node <= nodes; node++)); do write_node_config "$node"; done
  for ((node = 1; node <= nodes; node++)); do
    if start_node "$node"; then started+=("$node"); else failed=$((failed + 1)); fi
  done
  for node in "${started[@]}"; do
    await_node "$node" live || failed=$((failed + 1))
  done
  initialize_once "$failed"
  for node in "${started[@]}"; do
    if [[ -n $(node_pid "$node") ]]; then await_node "$node" ready || failed=$((failed + 1)); fi
  done
  ((failed == 0)) || die 'not every node is well (see above); the others go on. Mend it, then run this again'
  next_steps
}

check_choices() {
  if [[ -n $nodes && $nodes != 3 && $nodes != 5 ]]; then refuse "--nodes must be 3 or 5, is '$nodes'"; fi
  if [[ -n $base_port ]]; then
    if ! is_number "$base_port" || ((base_port < 1 || base_port > 65500)); then
      refuse "--base-port must be 1 to 65500, is '$base_port'"
    fi
  fi
  if [[ -e $dir ]]; then claim_folder "$dir"; fi
  if has_marker "$dir"; then
    local was_nodes was_port
    was_nodes=$(marker_get "$dir" nodes)
    was_port=$(marker_get "$dir" base_port)
    if [[ -n $nodes && $nodes != "$was_nodes" ]]; then refuse "the cluster in $dir has $was_nodes nodes; for another number use another --dir"; fi
    if [[ -n $base_port && $base_port != "$was_port" ]]; then refuse "the cluster in $dir has base port $was_port; for another one use another --dir"; fi
  fi
}

# Decides what never changes, or reads it.
settle_cluster() {
  claim_folder "$dir"
  if has_marker "$dir"; then
    nodes=$(marker_get "$dir" nodes) base_port=$(marker_get "$dir" base_port) cluster_id=$(marker_get "$dir" cluster_id)
    return
  fi
  nodes=${nodes:-3} base_port=${base_port:-7410}
  local node port
  for ((node = 1; node <= nodes; node++)); do
    for port in "$(http_port "$node")" "$(peer_port "$node")"; do
      if port_is_taken "$port"; then refuse "port $port is in use; choose another --base-port"; fi
    done
  done
  cluster_id=$(new_cluster_id)
  write_marker "$dir" "cluster_id=$cluster_id" "nodes=$nodes" "base_port=$base_port"
}

any_node_provisioned() {
  local node
  for ((node = 1; node <= nodes; node++)); do
    if [[ -e $(node_dir "$node")/provisioned ]]; then
      say true
      return
    fi
  done
  say false
}

write_node_config() { # node
  local folder
  folder=$(node_dir "$1")
  mkdir -p -- "$folder"
  chmod 0700 -- "$folder"
  # An edited file is the operator's.
  if [[ -s $folder/tenure.toml ]]; then return 0; fi
  {
    say "# Node $1 of a local cluster. Made by scripts/bootstrap.sh; edits are kept."
    say "cluster_id = \"$cluster_id\""
    say "node_id = $1"
    say "data_dir = \"$folder/data\""
    say "tokens_file = \"$dir/secrets/tokens\""
    say "cluster_secret_file = \"$dir/secrets/cluster.secret\""
    say
    say '[listen]'
    say "http = \"127.0.0.1:$(http_port "$1")\""
    say "peer = \"127.0.0.1:$(peer_port "$1")\""
    local member
    for ((member = 1; member <= nodes; member++)); do
      say
      say '[[members]]'
      say "id = $member"
      say "http = \"http://127.0.0.1:$(http_port "$member")\""
      say "peer = \"127.0.0.1:$(peer_port "$member")\""
    done
  } | write_whole "$folder/tenure.toml"
}

# Gives a node's folder its identity, once. A folder that had one and lost it stays as it is: a node that
# forgot what it voted for and acknowledged must not come back under its old number.
provision_node() { # node
  local folder
  folder=$(node_dir "$1")
  if [[ -e $folder/data/identity ]]; then
    if [[ ! -e $folder/provisioned ]]; then say "$cluster_id $1" | write_whole "$folder/provisioned" || return 1; fi
    return 0
  fi
  if [[ -e $folder/provisioned ]]; then
    warn "node $1: its data in $folder/data is gone. It is not started again as node $1: it would have forgotten its votes. Bring the folder back, or replace the node (docs/operations.md)"
    return 1
  fi
  if ! "$binary" node init --config "$folder/tenure.toml" >>"$folder/log" 2>&1 9>&-; then
    warn "node $1: cannot get its identity. The end of $folder/log:"
    tail -n 15 -- "$folder/log" >&2
    return 1
  fi
  say "$cluster_id $1" | write_whole "$folder/provisioned"
}

start_node() { # node
  local port
  if [[ -n $(node_pid "$1") ]]; then return 0; fi
  provision_node "$1" || return 1
  for port in "$(http_port "$1")" "$(peer_port "$1")"; do
    if port_is_taken "$port"; then
      warn "node $1: port $port is in use by another process"
      return 1
    fi
  done
  launch_node "$1"
}

# Waits until a node is live or ready.
await_node() { # node live|ready
  local deadline=$((SECONDS + wait_s)) health
  while :; do
    health=$(node_health "$1")
    # An answer counts only from the node's own process.
    if [[ -z $(node_pid "$1") ]]; then
      show_log "$1" 'has ended'
      return 1
    fi
    if [[ $health == ready || $health == "$2" ]]; then return 0; fi
    if ((SECONDS >= deadline)); then
      show_log "$1" "is not $2 after $wait_s s"
      return 1
    fi
    sleep 0.2
  done
}

show_log() { # node problem
  local log
  log=$(node_dir "$1")/log
  warn "node $1 $2. The end of $log:"
  if [[ -s $log ]]; then tail -n 15 -- "$log" >&2; fi
}

# Makes one cluster of the nodes. All nodes must be there and say that they are in none, and it is always
# node 1 that is asked: so it cannot happen twice.
initialize_once() { # failed
  local node view seen=false
  if [[ -e $dir/initialized ]]; then return 0; fi
  for ((node = 1; node <= nodes; node++)); do
    view=$(node_view "$node")
    if [[ $(field "$view" initialized) == true ]]; then seen=true; fi
  done
  if ! $seen; then
    (($1 == 0)) || die 'the cluster is not initialized yet, which needs every node. Mend the node above, then run this again'
    local members='' answer
    for ((node = 1; node <= nodes; node++)); do
      members+="${members:+,}{\"id\":$node,\"peer_address\":\"127.0.0.1:$(peer_port "$node")\",\"api_url\":\"http://127.0.0.1:$(http_port "$node")\"}"
    done
    [[ -s $dir/secrets/admin.token ]] || die "initializing needs $dir/secrets/admin.token, which is not there"
    answer=$(http_request "$(http_port 1)" POST /v1/cluster/initialize "$dir/secrets/admin.token" "{\"members\":[$members]}") ||
      die 'node 1 did not answer whether it initialized the cluster. Run this again: it finds out'
    case $answer in
      2*) ;;
      *already_initialized*) ;;
      *) die "node 1 refused to initialize the cluster: ${answer#*$'\n'}" ;;
    esac
    say "Initialized cluster $cluster_id."
  fi
  say "$cluster_id" | write_whole "$dir/initialized"
}

local_stop() {
  require_cluster
  take_lock
  stop_nodes || exit 1
}

stop_nodes() {
  local node pid deadline=$((SECONDS + wait_s)) stayed=() asked=()
  for ((node = 1; node <= nodes; node++)); do
    pid=$(node_pid "$node")
    if [[ -z $pid ]]; then
      rm -f -- "$(node_dir "$node")/pid"
      continue
    fi
    kill -TERM "$pid" 2>/dev/null || true
    asked+=("$node")
  done
  for node in "${asked[@]}"; do
    while [[ -n $(node_pid "$node") ]]; do
      if ((SECONDS >= deadline)); then
        stayed+=("$node")
        break
      fi
      sleep 0.1
    done
    if [[ -z $(node_pid "$node") ]]; then rm -f -- "$(node_dir "$node")/pid"; fi
  done
  for node in "${stayed[@]}"; do
    warn "node $node (pid $(node_pid "$node")) did not stop within $wait_s s. Its log: $(node_dir "$node")/log"
  done
  say "Stopped $((${#asked[@]} - ${#stayed[@]})) of ${#asked[@]} running nodes."
  ((${#stayed[@]} == 0))
}

local_status() {
  require_cluster
  local node pid health role term applied view bad=0
  say "cluster $cluster_id in $dir"
  printf '%-5s %-8s %-7s %-9s %-6s %s\n' NODE PID HEALTH ROLE TERM APPLIED
  for ((node = 1; node <= nodes; node++)); do
    pid=$(node_pid "$node") health=down role=- term=- applied=- view=''
    if [[ -n $pid ]]; then
      health=$(node_health "$node")
      view=$(node_view "$node")
    fi
    if [[ -n $view ]]; then
      term=$(field "$view" term) applied=$(field "$view" applied_index)
      role=follower
      if [[ $(field "$view" leader) == "$node" ]]; then role=leader; fi
      if [[ -z $(field "$view" leader) ]]; then role=no-leader; fi
    fi
    printf '%-5s %-8s %-7s %-9s %-6s %s\n' "$node" "${pid:--}" "$health" "$role" "${term:--}" "${applied:--}"
    [[ $health == ready ]] || bad=$((bad + 1))
  done
  ((bad == 0))
}

local_destroy() {
  [[ -e $dir ]] || refuse "$dir is not there"
  require_cluster
  [[ $dir != / && $dir != "$HOME" && $dir != "$project" ]] || refuse "$dir is not deleted"
  if ! $yes; then
    [[ -t 0 ]] || refuse 'destroy asks; without a terminal give --yes'
    local answer
    read -r -p "Delete cluster $cluster_id with all its data and secrets in $dir? Type its id: " answer
    [[ $answer == "$cluster_id" ]] || die 'nothing was deleted'
  fi
  take_lock
  stop_nodes || die 'nothing was deleted, because a node still runs'
  # The marker goes last: what is left of an interrupted deletion can still be deleted.
  find "$dir" -mindepth 1 -maxdepth 1 ! -name "$MARKER" -exec rm -rf -- {} +
  rm -f -- "$dir/$MARKER"
  rmdir -- "$dir"
  say "Deleted $dir."
}

next_steps() {
  local node list=''
  for ((node = 1; node <= nodes; node++)); do list+="${list:+,}http://127.0.0.1:$(http_port "$node")"; done
  cat <<TEXT

Cluster $cluster_id runs: $nodes nodes in $dir.

  export TENURE_NODES=$list
  export TENURE_TOKEN_FILE=$dir/secrets/admin.token
  $binary cluster status

Tokens of the other roles are beside that one. Next:

  $here/bootstrap.sh status --dir $dir
  $here/bootstrap.sh stop --dir $dir
TEXT
}
