#!/bin/bash
# Runs inside the machine that test_packages.py boots: installs, starts, upgrades and purges the package, and writes down what
# it sees, a section for each question. Then it switches the machine off.
exec >/root/probe.out 2>&1
section() { echo "== $1 =="; }
quiet() { "$@" >>/root/probe.log 2>&1; }

quiet systemctl start munge slurmctld
quiet dpkg -i /root/old.deb
section enabled
systemctl is-enabled selasticd
sed -i -e 's/^#listen = .*/listen = "auto:16850"/' \
    -e 's|^#listen_socket = .*|listen_socket = "/run/slurm-elastic/selasticd.sock"|' /etc/slurm-elastic/selasticd.toml
mkdir -p /etc/systemd/system/selasticd.service.d
# The check runs under the unit's own confinement.
printf '[Service]\nExecStartPre=/opt/slurm-elastic/bin/selasticd --check\n' >/etc/systemd/system/selasticd.service.d/check.conf
quiet systemctl daemon-reload
quiet systemctl enable --now selasticd
for _ in $(seq 120); do [ -e /etc/slurm-elastic/client.json ] && break; sleep 0.5; done
section own_name
getent hosts "$(hostname)"
section url
url=$(sed -n 's/.*"url": "\([^"]*\)".*/\1/p' /etc/slurm-elastic/client.json); echo "$url"
section active
systemctl is-active selasticd
section status_root
SELASTIC_URL=$url selastic status; echo "rc=$?"
section status_nobody
runuser -u nobody -- selastic status; echo "rc=$?"
section database_nobody
runuser -u nobody -- head -c 1 /var/lib/slurm-elastic/selastic.db
section watchdog
systemctl show -P Type -P WatchdogUSec -P StatusText selasticd
mkdir -p /run/systemd/system/selasticd.service.d
printf '[Service]\nWatchdogSec=5\nTimeoutStopSec=5\n' >/run/systemd/system/selasticd.service.d/quick.conf
quiet systemctl daemon-reload
quiet systemctl restart selasticd
kill -STOP "$(systemctl show -P MainPID selasticd)"
for _ in $(seq 120); do [ "$(systemctl show -P NRestarts selasticd)" != 0 ] && break; sleep 0.5; done
for _ in $(seq 120); do systemctl is-active --quiet selasticd && break; sleep 0.5; done
systemctl show -P NRestarts -P ActiveState selasticd
rm /run/systemd/system/selasticd.service.d/quick.conf
quiet systemctl daemon-reload
quiet systemctl restart selasticd
section journal
journalctl -u selasticd --no-pager -o cat
section warnings
journalctl -u selasticd --no-pager -o cat -p warning | grep -c 'selasticd serves'
journalctl -u selasticd --no-pager -o cat SYSLOG_IDENTIFIER=selasticd PRIORITY=6 | grep -c 'selasticd serves'
section pid_before
systemctl show -P MainPID selasticd
quiet dpkg -i /root/new.deb
section active_after
systemctl is-active selasticd
section pid_after
systemctl show -P MainPID selasticd
quiet dpkg --purge slurm-elastic
section purged
ls -d /opt/slurm-elastic /var/lib/slurm-elastic /etc/slurm-elastic /usr/lib/systemd/system/selasticd.service 2>/dev/null
pgrep -u selastic >/dev/null || echo "no process"
section end
systemctl poweroff
