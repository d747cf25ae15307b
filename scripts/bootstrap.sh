#!/usr/bin/env bash
# Puts up a Tenure cluster: on this machine (`local`), or as one bundle a host (`hosts`).
#
# Safe to run again at any stage. What is missing is made, what is there is never made anew: the cluster's
# id, its secrets, the nodes' identities and their data. A node whose data was there once and is gone is
# not started again as itself.
set -euo pipefail
umask 077

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
project=$(dirname -- "$here")
# shellcheck source-path=SCRIPTDIR source=bootstrap/ground.sh
source "$here/bootstrap/ground.sh"
# shellcheck source-path=SCRIPTDIR source=bootstrap/secrets.sh
source "$here/bootstrap/secrets.sh"
# shellcheck source-path=SCRIPTDIR source=bootstrap/process.sh
source "$here/bootstrap/process.sh"
# shellcheck source-path=SCRIPTDIR source=bootstrap/local.sh
source "$here/bootstrap/local.sh"
# shellcheck source-path=SCRIPTDIR source=bootstrap/hosts.sh
source "$here/bootstrap/hosts.sh"

usage() {
  cat <<'TEXT'
Usage:
  scripts/bootstrap.sh local   [--nodes 3|5] [--dir DIR] [--base-port PORT] [--binary FILE] [--wait SECONDS]
  scripts/bootstrap.sh start   [--dir DIR] [--binary FILE] [--wait SECONDS]
  scripts/bootstrap.sh stop    [--dir DIR] [--wait SECONDS]
  scripts/bootstrap.sh status  [--dir DIR]
  scripts/bootstrap.sh destroy [--dir DIR] [--yes] [--wait SECONDS]
  scripts/bootstrap.sh hosts   --hosts FILE --out DIR [--binary FILE]

local     Makes folders, configuration, cluster id, tokens and the cluster secret, starts the nodes on
          loopback, waits until they are healthy, initializes the cluster once, and says what to do next.
          Run it again after anything: it repairs what is missing.
start     As local, for a cluster that is there.
stop      Sends SIGTERM to each node and waits. Says which did not stop. Never kills.
status    One line a node. Exit code 1 unless every node is ready.
destroy   Stops the nodes and deletes the folder, if this script made it. Asks first.
hosts     Writes a bundle for each host of the list: configuration, secrets, a systemd unit, an installer.

  --nodes N       3 (the default) or 5.
  --dir DIR       Where a local cluster lives. Default: var/local in the project.
  --base-port P   Node 1 listens on P+1 (HTTP) and P+11 (peers), node 2 on P+2 and P+12, and so on.
                  Default: 7410.
  --binary FILE   The tenure program. Default: target/release/tenure, built if it is not there.
  --wait SECONDS  How long to wait for nodes. Default: 60.
  --hosts FILE    One host a line: NAME ADDRESS [HTTP-PORT PEER-PORT]. NAME is what `hostname` says there,
                  ADDRESS the IP address its peers and clients reach. `#` begins a comment. 3 or 5 lines.
  --out DIR       Where the bundles go.

Exit code: 0 done, 1 something failed, 2 wrong usage or input.
TEXT
}

main() {
  local mode=${1:-}
  case $mode in
    local | start | stop | status | destroy | hosts) shift ;;
    --help | -h | help)
      usage
      return 0
      ;;
    '') refuse 'say what to do: local, start, stop, status, destroy or hosts (see --help)' ;;
    *) refuse "unknown command $mode (see --help)" ;;
  esac

  nodes='' dir='' base_port='' binary='' wait_s=60 hosts_file='' out='' yes=false
  local allowed
  case $mode in
    local) allowed='--nodes --dir --base-port --binary --wait' ;;
    start) allowed='--dir --binary --wait' ;;
    stop) allowed='--dir --wait' ;;
    status) allowed='--dir' ;;
    destroy) allowed='--dir --yes --wait' ;;
    hosts) allowed='--hosts --out --binary' ;;
  esac
  while (($# > 0)); do
    local option=$1 value=''
    shift
    case $option in
      --help | -h)
        usage
        return 0
        ;;
      --*=*)
        value=${option#*=}
        option=${option%%=*}
        ;;
      --yes) ;;
      --*)
        (($# > 0)) || refuse "$option needs a value"
        value=$1
        shift
        ;;
      *) refuse "unexpected argument $option" ;;
    esac
    [[ " $allowed " == *" $option "* ]] || refuse "$option does not belong to $mode (allowed: $allowed)"
    case $option in
      --nodes) nodes=$value ;;
      --dir) dir=$value ;;
      --base-port) base_port=$value ;;
      --binary) binary=$value ;;
      --wait) wait_s=$value ;;
      --hosts) hosts_file=$value ;;
      --out) out=$value ;;
      --yes) yes=true ;;
    esac
  done

  if ! is_number "$wait_s" || ((wait_s < 1 || wait_s > 3600)); then
    refuse "--wait must be 1 to 3600 seconds, is '$wait_s'"
  fi
  require_tools
  if [[ $mode == hosts ]]; then
    hosts_command
    return
  fi
  dir=$(realpath -m -- "${dir:-$project/var/local}")
  case $mode in
    local) local_up ;;
    start)
      require_cluster
      local_up
      ;;
    stop) local_stop ;;
    status) local_status ;;
    destroy) local_destroy ;;
  esac
}

main "$@"
