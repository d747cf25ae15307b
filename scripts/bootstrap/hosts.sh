# shellcheck shell=bash
# shellcheck disable=SC2154 # options and paths are set by bootstrap.sh, which sources this
# One bundle a host: OUT/NAME/ for the nodes, OUT/executor/ as an example, OUT/secrets/ for the operator.

readonly DEFAULT_HTTP_PORT=7411
readonly DEFAULT_PEER_PORT=7421

hosts_command() {
  [[ -n $hosts_file ]] || refuse 'hosts needs --hosts FILE'
  [[ -n $out ]] || refuse 'hosts needs --out DIR'
  [[ -r $hosts_file && ! -d $hosts_file ]] || refuse "$hosts_file cannot be read"
  if [[ -n $binary ]]; then find_binary; fi
  read_hosts
  out=$(realpath -m -- "$out")
  claim_folder "$out"
  settle_bundles
  local has_data=false index
  if [[ -e $out/secrets/tokens ]]; then has_data=true; fi
  make_secrets "$out/secrets" "$has_data"
  for ((index = 0; index < ${#names[@]}; index++)); do write_bundle "$index"; done
  write_executor_bundle
  hosts_next_steps
}

# Fills names, addresses, http_ports and peer_ports, or refuses with the line's number.
read_hosts() {
  names=() addresses=() http_ports=() peer_ports=()
  local number=0 line fields at
  while IFS= read -r line || [[ -n $line ]]; do
    number=$((number + 1))
    line=${line%%#*}
    read -r -a fields <<<"$line"
    if ((${#fields[@]} == 0)); then continue; fi
    at="$hosts_file line $number"
    if ((${#fields[@]} != 2 && ${#fields[@]} != 4)); then refuse "$at: must be NAME ADDRESS [HTTP-PORT PEER-PORT]"; fi
    [[ ${fields[0]} =~ ^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$ ]] ||
      refuse "$at: the name must be 1 to 63 of a-z, 0-9, '.' and '-', is '${fields[0]}'"
    is_address "${fields[1]}" ||
      refuse "$at: the address must be the IP address the host listens on, such as 10.0.0.1 or fd00::1, is '${fields[1]}'"
    if in_list "${fields[0]}" "${names[@]}"; then refuse "$at: the name ${fields[0]} is there twice"; fi
    if in_list "${fields[1]}" "${addresses[@]}"; then refuse "$at: the address ${fields[1]} is there twice; two nodes on one host fail together"; fi
    case ${fields[0]} in executor | secrets) refuse "$at: the name ${fields[0]} is taken by a folder of the bundles" ;; esac
    names+=("${fields[0]}")
    addresses+=("${fields[1]}")
    http_ports+=("${fields[2]:-$DEFAULT_HTTP_PORT}")
    peer_ports+=("${fields[3]:-$DEFAULT_PEER_PORT}")
    is_port "${http_ports[-1]}" || refuse "$at: the HTTP port must be 1 to 65535, is '${http_ports[-1]}'"
    is_port "${peer_ports[-1]}" || refuse "$at: the peer port must be 1 to 65535, is '${peer_ports[-1]}'"
    if [[ ${http_ports[-1]} == "${peer_ports[-1]}" ]]; then refuse "$at: the two ports must differ"; fi
  done <"$hosts_file"
  if ((${#names[@]} != 3 && ${#names[@]} != 5)); then refuse "$hosts_file names ${#names[@]} hosts, must be 3 or 5"; fi
}

in_list() { # wanted item...
  local wanted=$1 item
  shift
  for item in "$@"; do
    if [[ $item == "$wanted" ]]; then return 0; fi
  done
  return 1
}

is_address() {
  local part parts
  if [[ $1 =~ ^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
    IFS=. read -r -a parts <<<"$1"
    for part in "${parts[@]}"; do
      if ! is_number "$part" || ((part > 255)); then return 1; fi
    done
    # 0.0.0.0 and its kind are nowhere to connect to.
    ((parts[0] != 0))
    return
  fi
  [[ $1 =~ ^[0-9a-f:]{3,39}$ && $1 == *:*:* && $1 != *:::* && $1 != '::' ]]
}

is_loopback() { [[ $1 == 127.* || $1 == '::1' ]]; }

# host:port, with the brackets that IPv6 needs.
at_port() { # address port
  if [[ $1 == *:* ]]; then say "[$1]:$2"; else say "$1:$2"; fi
}

# Decides what never changes, or refuses another list of hosts.
settle_bundles() {
  local index list=''
  for ((index = 0; index < ${#names[@]}; index++)); do
    list+="${list:+ }$((index + 1)):${names[index]}:$(at_port "${addresses[index]}" "${http_ports[index]}"):${peer_ports[index]}"
  done
  if has_marker "$out"; then
    [[ $(marker_get "$out" hosts) == "$list" ]] ||
      refuse "$out was made for other hosts ($(marker_get "$out" hosts)). A cluster's members are not changed by new bundles; for another cluster use another --out"
    cluster_id=$(marker_get "$out" cluster_id)
    return
  fi
  cluster_id=$(new_cluster_id)
  write_marker "$out" "cluster_id=$cluster_id" "hosts=$list"
}

write_bundle() { # index
  local name=${names[$1]} id=$(($1 + 1)) folder
  folder=$out/$name
  mkdir -p -- "$folder"
  chmod 0700 -- "$folder"
  node_toml "$1" | write_if_changed "$folder/tenure.toml"
  write_if_changed "$folder/cluster.secret" <"$out/secrets/cluster.secret"
  write_if_changed "$folder/tokens" <"$out/secrets/tokens"
  node_unit "$1" | write_if_changed "$folder/tenure.service"
  sed -e "s|@NAME@|$name|g" -e "s|@NODE_ID@|$id|g" -e "s|@CLUSTER_ID@|$cluster_id|g" \
    "$here/bootstrap/install_node.sh" | write_if_changed "$folder/install.sh"
  chmod 0700 -- "$folder/install.sh"
  if [[ -n $binary ]]; then
    cp -f -- "$binary" "$folder/tenure.new"
    chmod 0755 -- "$folder/tenure.new"
    mv -f -- "$folder/tenure.new" "$folder/tenure"
  fi
}

node_toml() { # index
  local member
  say "# Node $(($1 + 1)) of cluster $cluster_id, on ${names[$1]}. Made by scripts/bootstrap.sh hosts."
  say "cluster_id = \"$cluster_id\""
  say "node_id = $(($1 + 1))"
  say 'data_dir = "/var/lib/tenure/node"'
  say 'tokens_file = "/etc/tenure/tokens"'
  say 'cluster_secret_file = "/etc/tenure/cluster.secret"'
  say
  say '[listen]'
  say "http = \"$(at_port "${addresses[$1]}" "${http_ports[$1]}")\""
  say "peer = \"$(at_port "${addresses[$1]}" "${peer_ports[$1]}")\""
  for ((member = 0; member < ${#names[@]}; member++)); do
    say
    say "# ${names[member]}"
    say '[[members]]'
    say "id = $((member + 1))"
    say "http = \"http://$(at_port "${addresses[member]}" "${http_ports[member]}")\""
    say "peer = \"$(at_port "${addresses[member]}" "${peer_ports[member]}")\""
  done
}

node_unit() { # index
  local flag=''
  if ! is_loopback "${addresses[$1]}"; then
    flag=' --insecure-network'
    say '# WARNING: nothing between nodes, clients and executors is encrypted yet. --insecure-network says that this'
    say '# is known: keep both ports inside a private network or a tunnel.'
  fi
  cat <<TEXT
[Unit]
Description=Tenure node $(($1 + 1)) of cluster $cluster_id
Wants=network-online.target
After=network-online.target time-sync.target
# A node that cannot start, for example because its data is gone, is not started for ever.
StartLimitIntervalSec=120
StartLimitBurst=5

[Service]
User=tenure
Group=tenure
ExecStart=/usr/local/bin/tenure server --config /etc/tenure/tenure.toml$flag
Restart=always
RestartSec=2
# SIGTERM hands over the lead first.
KillSignal=SIGTERM
TimeoutStopSec=60
LimitNOFILE=65536
# All live state is in memory: set a limit well above what the node uses.
#MemoryMax=4G
StateDirectory=tenure
StateDirectoryMode=0700
ReadWritePaths=/var/lib/tenure
$(hardening)
MemoryDenyWriteExecute=yes
ProtectHome=yes
ProtectSystem=strict
CapabilityBoundingSet=
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
TEXT
}

# What a node and an executor have in common.
hardening() {
  cat <<'TEXT'
UMask=0077
NoNewPrivileges=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
TEXT
}

node_urls() {
  local index list=''
  for ((index = 0; index < ${#names[@]}; index++)); do
    list+="${list:+,}http://$(at_port "${addresses[index]}" "${http_ports[index]}")"
  done
  say "$list"
}

write_executor_bundle() {
  local folder=$out/executor
  mkdir -p -- "$folder"
  chmod 0700 -- "$folder"
  if [[ -f $out/secrets/executor.token ]]; then
    write_if_changed "$folder/executor.token" <"$out/secrets/executor.token"
  fi
  executor_toml | write_if_changed "$folder/executor.toml"
  executor_unit | write_if_changed "$folder/tenure-executor.service"
}

executor_toml() {
  local urls
  urls=$(node_urls)
  say '# An executor of the cluster. Flags of the command line go over it.'
  say "nodes = [\"${urls//,/\", \"}\"]"
  say 'token_file = "/etc/tenure-executor/executor.token"'
  say 'state_dir = "/var/lib/tenure-executor"'
  say 'work_dir = "/var/lib/tenure-executor"'
  say 'capacity = 8'
  say
  say '# Off until it is switched on: jobs would run programs on this host.'
  say '[shell]'
  say 'enabled = false'
  say '#allow_commands = ["/usr/local/bin/*"]'
  say
  say '# Reaches the public internet, and what is listed here.'
  say '[http]'
  say 'enabled = true'
  say '#allow_hosts = ["*.internal.example"]'
}

executor_unit() {
  cat <<TEXT
# An example. Install: a user tenure-executor, /usr/local/bin/tenure, and /etc/tenure-executor with
# executor.toml and executor.token (mode 0600, owned by that user). What jobs may do here is said in
# executor.toml; programs they start have the rights of that user and of this unit.
[Unit]
Description=Tenure executor of cluster $cluster_id
Wants=network-online.target
After=network-online.target

[Service]
User=tenure-executor
Group=tenure-executor
ExecStart=/usr/local/bin/tenure executor --config /etc/tenure-executor/executor.toml
Restart=always
RestartSec=2
# SIGTERM drains: no new work, running work ends or is given back with its checkpoint.
KillMode=mixed
KillSignal=SIGTERM
TimeoutStopSec=120
StateDirectory=tenure-executor
StateDirectoryMode=0700
$(hardening)
ProtectSystem=strict

[Install]
WantedBy=multi-user.target
TEXT
}

hosts_next_steps() {
  local index exposed=false
  say "Cluster $cluster_id: ${#names[@]} bundles in $out."
  say
  for ((index = 0; index < ${#names[@]}; index++)); do
    say "  $((index + 1)). Copy $out/${names[index]}/ to ${names[index]} (${addresses[index]}) and run, as root: ./install.sh"
    is_loopback "${addresses[index]}" || exposed=true
  done
  if [[ -z $binary ]]; then say "     Put the tenure program beside install.sh first, or into /usr/local/bin (or use --binary here)."; fi
  cat <<TEXT

When all nodes run, initialize the cluster once, from anywhere that reaches them:

  export TENURE_NODES=$(node_urls)
  export TENURE_TOKEN_FILE=$out/secrets/admin.token
  tenure cluster initialize --config $out/${names[0]}/tenure.toml
  tenure cluster status

$out/executor/ has an example unit and the token for executors.
Keep $out/secrets: tokens stand nowhere else in clear text.
TEXT
  if $exposed; then
    say
    warn 'the nodes listen beyond loopback and nothing is encrypted yet. Whoever sees the packets can read tokens and data. Keep the ports inside a private network or a tunnel'
  fi
}
