#!/usr/bin/env bash
# Installs or updates this host's Tenure node. Run as root, from the bundle's folder. Safe to run again:
# configuration, unit and program are brought up to date, secrets and data are kept.
set -euo pipefail
umask 077
name='@NAME@' node_id='@NODE_ID@' cluster_id='@CLUSTER_ID@'

die() {
  printf 'install: %s\n' "$*" >&2
  exit 1
}

force=false
case ${1:-} in
  '') ;;
  --force) force=true ;;
  *)
    printf 'Usage: ./install.sh [--force]\n\n  --force   Install although this host is not called %s.\n' "$name"
    [[ $1 == --help ]] && exit 0
    exit 2
    ;;
esac

((EUID == 0)) || die 'must run as root'
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
for file in tenure.toml cluster.secret tokens tenure.service; do
  [[ -s $file ]] || die "$file is not in the bundle"
done
full=$(hostname)
if [[ $full != "$name" && ${full%%.*} != "$name" ]] && ! $force; then
  die "this host is called $full, the bundle is for $name. On the wrong host it would make two nodes with one number. With --force it is installed anyway"
fi

# Never put one node in another's place.
setting() { sed -n "s/^$1 = \"\\{0,1\\}\\([^\"]*\\)\"\\{0,1\\}\$/\\1/p" /etc/tenure/tenure.toml | head -n 1; }
if [[ -e /etc/tenure/tenure.toml ]]; then
  found="node $(setting node_id) of cluster $(setting cluster_id)"
  [[ $found == "node $node_id of cluster $cluster_id" ]] ||
    die "/etc/tenure belongs to $found, the bundle is node $node_id of cluster $cluster_id"
fi
if [[ -e /etc/tenure/cluster.secret ]] && ! cmp -s cluster.secret /etc/tenure/cluster.secret; then
  die '/etc/tenure/cluster.secret differs from the bundle. To change the secret: stop all nodes, remove the file on each, install again'
fi

if ! getent passwd tenure >/dev/null; then
  useradd --system --user-group --home-dir /var/lib/tenure --no-create-home --shell /usr/sbin/nologin tenure
fi
if [[ -f tenure ]]; then
  # A program that runs cannot be written to, but it can be replaced.
  install -m 0755 -o root -g root tenure /usr/local/bin/tenure.new
  mv -f /usr/local/bin/tenure.new /usr/local/bin/tenure
fi
[[ -x /usr/local/bin/tenure ]] || die 'there is no /usr/local/bin/tenure and none in the bundle'

install -d -m 0750 -o root -g tenure /etc/tenure
install -d -m 0700 -o tenure -g tenure /var/lib/tenure
install -m 0640 -o root -g tenure tenure.toml /etc/tenure/tenure.toml
install -m 0600 -o tenure -g tenure cluster.secret /etc/tenure/cluster.secret
install -m 0600 -o tenure -g tenure tokens /etc/tenure/tokens
install -m 0644 -o root -g root tenure.service /etc/systemd/system/tenure.service

# The identity is given once. A host that had one and lost it is not this node any more.
if [[ ! -e /var/lib/tenure/node/identity ]]; then
  if [[ -e /etc/tenure/provisioned ]]; then
    die "the data of node $node_id in /var/lib/tenure/node is gone. It must not come back under its old number: it would have forgotten its votes. See docs/operations.md"
  fi
  runuser -u tenure -- /usr/local/bin/tenure node init --config /etc/tenure/tenure.toml
fi
printf 'node %s of cluster %s\n' "$node_id" "$cluster_id" >/etc/tenure/provisioned

systemctl daemon-reload
systemctl enable --quiet tenure.service
systemctl restart tenure.service
systemctl --no-pager --lines=0 status tenure.service
