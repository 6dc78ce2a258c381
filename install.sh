#!/bin/sh
# Installs Balsa on this machine and starts it under systemd, or removes it.
# Nothing is downloaded unless BALSA_URL is set.
#
# Files:  /usr/local/bin/balsa                       the program
#         /etc/balsa/config.yaml                     its settings
#         /etc/balsa/join-token                      until this machine has joined
#         /etc/systemd/system/balsa-{server,agent}.service
#         /etc/sysctl.d/90-balsa.conf                where the host's limits were too low
set -eu
umask 022

usage() {
	cat <<'END'
usage: install.sh --server [--first]                       create a cluster
       install.sh --server --join HOST --token TOKEN       add a server
       install.sh --agent --join HOST --token TOKEN        add a node that runs pods
       install.sh --uninstall [--purge]                    remove everything
       install.sh --check [--server|--agent]               only check this host

  --binary FILE       the program (default: balsa or bin/balsa beside this script,
                      else what BALSA_URL names)
  --join HOST[,HOST]  servers of the cluster to join, as host or host:port
  --token TOKEN       from `balsa token create --role server|agent` on a server
  --token-file FILE   the same from a file, which keeps it out of the list of processes
  --config FILE       becomes /etc/balsa/config.yaml
  --first             this server creates a new cluster
  --restart           upgrade: restart the running service; without it, the service
                      keeps the program with which it was started
  --no-start          only install the files
  --wait SECONDS      how long to wait until the service works (default 300)
  --dry-run           print what would be done, and do nothing
  --purge             with --uninstall: remove the cluster's data and settings too
  --NAME[=VALUE]      any flag of `balsa server` or `balsa agent`, written to
                      /etc/balsa/config.yaml: --node-ip=10.0.0.5, --disable-agent, …

Environment:
  BALSA_URL           directory of a release: balsa-linux-amd64, balsa-linux-arm64,
                      and beside each its checksum, as FILE.sha256
  DESTDIR             install the files below this directory (for images): this host
                      is neither checked nor changed, and nothing is started
END
}

say() { printf '%s\n' "balsa: $*"; }
warn() { printf '%s\n' "balsa: warning: $*" >&2; }
die() {
	printf '%s\n' "balsa: $*" >&2
	exit 1
}

# fault reports a reason why this host cannot run Balsa. All are reported before the script ends.
faults=0
fault() {
	printf '%s\n' "balsa: $*" >&2
	faults=$((faults + 1))
}

# run executes a command that changes the host or, with --dry-run, prints it.
run() {
	if [ -n "$dry" ]; then
		say "would run: $*"
	else
		"$@"
	fi
}

role='' join='' token='' token_file='' binary='' config='' first='' restart='' no_start='' dry='' purge='' patience=300 action=install
flags=''  # further flags of balsa, one name=value a line
data_dir=''
dest=${DESTDIR:-}
dest=${dest%/}
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

bin=/usr/local/bin/balsa
etc=/etc/balsa
units=/etc/systemd/system
sysctls=/etc/sysctl.d/90-balsa.conf
config_yaml=$etc/config.yaml
join_token=$etc/join-token
newline='
'

parse() {
	while [ $# -gt 0 ]; do
		option=$1 value='' separate=''
		case $option in
		--*=*) value=${option#*=} option=${option%%=*} ;;
		*) separate=yes ;;
		esac
		case $option in
		--join | --token | --token-file | --binary | --config | --wait)
			if [ -n "$separate" ]; then
				[ $# -gt 1 ] || die "$option needs a value"
				value=$2
				shift
			fi
			[ -n "$value" ] || die "$option needs a value"
			;;
		--server | --agent | --first | --restart | --no-start | --dry-run | --purge | --uninstall | --check)
			[ -n "$separate" ] || die "$option takes no value"
			;;
		esac
		case $option in
		--server | --agent)
			[ -z "$role" ] || [ "$role" = "${option#--}" ] || die "give --server or --agent, not both (a server runs pods too, unless --disable-agent)"
			role=${option#--}
			;;
		--join) join=$value ;;
		--token) token=$value ;;
		--token-file) token_file=$value ;;
		--binary) binary=$value ;;
		--config) config=$value ;;
		--wait) patience=$value ;;
		--first) first=yes ;;
		--restart) restart=yes ;;
		--no-start) no_start=yes ;;
		--dry-run) dry=yes ;;
		--purge) purge=yes ;;
		--uninstall) action=uninstall ;;
		--check) action=check ;;
		-h | --help)
			usage
			exit 0
			;;
		--?*)
			# A flag of balsa: --name=value, --name value, or --name alone.
			if [ -n "$separate" ]; then
				value=true
				case ${2:-} in
				'' | -*) ;;
				*)
					value=$2
					shift
					;;
				esac
			fi
			case $value in *"$newline"*) die "$option: a value is one line" ;; esac
			flags="$flags${option#--}=$value$newline"
			;;
		*) die "unknown argument $option; see install.sh --help" ;;
		esac
		shift
	done
	case $patience in '' | *[!0-9]*) die "--wait $patience: give a number of seconds" ;; esac
}

validate() {
	case $action in
	uninstall)
		[ -z "$role$join$token$token_file$binary$config$first" ] || die "--uninstall goes with --purge and --dry-run only"
		return
		;;
	check)
		role=${role:-server}
		return
		;;
	esac
	[ -z "$purge" ] || die "--purge goes with --uninstall"
	[ -n "$role" ] || die "give --server, --agent or --uninstall; see install.sh --help"
	[ -z "$token" ] || [ -z "$token_file" ] || die "give --token or --token-file, not both"
	[ -z "$first" ] || [ -z "$join" ] || die "--first begins a new cluster, --join becomes a member of another: give one of them"
	[ -z "$first" ] || [ "$role" = server ] || die "--first is for --server: an agent joins a cluster"
	[ -n "$join" ] || [ -z "$token$token_file" ] || die "a token needs --join HOST: which server to join"
	if [ -n "$join" ] && [ -z "$token$token_file" ]; then
		die "--join needs --token or --token-file: \`balsa token create --role $role\` on a server makes a token"
	fi
	[ -z "$config" ] || [ -r "$config" ] || die "configuration $config cannot be read"
	if [ -n "$token_file" ]; then
		[ -r "$token_file" ] || die "token file $token_file cannot be read"
		token=$(tr -d ' \t\r\n' <"$token_file")
	fi
	case $role.$token in
	*. | server.balsa1.s.* | agent.balsa1.a.*) ;;
	server.balsa1.a.*) die "this token is for agents: \`balsa token create --role server\` makes one for servers" ;;
	agent.balsa1.s.*) die "this token is for servers: \`balsa token create --role agent\` makes one for agents" ;;
	*) die "this is no join token: one begins with balsa1." ;;
	esac
	other=agent
	[ "$role" = server ] || other=server
	[ ! -e "$dest$units/balsa-$other.service" ] || die "this machine is a balsa $other already: install.sh --uninstall first"
	if [ "$role" = agent ] && [ -z "$join" ] && [ ! -e "$dest$units/balsa-agent.service" ] && ! grep -q '^join:' "${config:-/dev/null}"; then
		die "an agent joins a cluster: give --join HOST and --token TOKEN, from \`balsa token create --role agent\` on a server"
	fi
}

# setting NAME DEFAULT prints the value of a flag, from the command line or the settings file.
setting() {
	found=$(printf '%s' "$flags" | sed -n "s/^$1=//p" | tail -n 1)
	for file in "$config" "$dest$config_yaml"; do
		[ -n "$found" ] || [ -z "$file" ] || [ ! -r "$file" ] ||
			found=$(sed -n "s/^$1:[[:space:]]*//p" "$file" | tail -n 1 | sed "s/[[:space:]]#.*//; s/^['\"]//; s/['\"][[:space:]]*\$//")
	done
	printf '%s' "${found:-$2}"
}

# ---- the program

find_binary() {
	if [ -z "$binary" ]; then
		for file in "$here/balsa" "$here/bin/balsa"; do
			if [ -f "$file" ]; then
				binary=$file
				break
			fi
		done
	fi
	if [ -z "$binary" ] && [ -n "${BALSA_URL:-}" ]; then
		fetch_binary
	fi
	if [ -z "$binary" ] && [ -x "$dest$bin" ]; then
		binary=$dest$bin # installed already: new settings only
	fi
	[ -n "$binary" ] || die "no program to install: give --binary FILE (\`make build\` makes bin/balsa), or set BALSA_URL to a release"
	[ -f "$binary" ] || die "$binary is not there"
	# The ELF header has the machine for which the program was built.
	magic=$(od -An -tx1 -N4 "$binary" | tr -d ' ')
	[ "$magic" = 7f454c46 ] || die "$binary is no Linux program"
	[ -z "$dest" ] || return 0
	case $(od -An -tx1 -j18 -N1 "$binary" | tr -d ' ') in
	3e) built=x86_64 ;;
	b7) built=aarch64 ;;
	*) built=another ;;
	esac
	[ "$built" = "$(uname -m)" ] || die "$binary is built for $built, this machine is $(uname -m)"
}

work=''
cleanup() { [ -z "$work" ] || rm -rf "$work"; }
trap cleanup EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

fetch_binary() {
	case $(uname -m) in
	x86_64) name=balsa-linux-amd64 ;;
	aarch64) name=balsa-linux-arm64 ;;
	*) die "there is no release for $(uname -m)" ;;
	esac
	if [ -n "$dry" ]; then
		say "would fetch ${BALSA_URL%/}/$name and check it against $name.sha256"
		exit 0
	fi
	work=$(mktemp -d)
	for file in "$name" "$name.sha256"; do
		if command -v curl >/dev/null 2>&1; then
			curl -fsSL --retry 3 -o "$work/$file" "${BALSA_URL%/}/$file" || die "${BALSA_URL%/}/$file cannot be fetched"
		elif command -v wget >/dev/null 2>&1; then
			wget -q -O "$work/$file" "${BALSA_URL%/}/$file" || die "${BALSA_URL%/}/$file cannot be fetched"
		else
			die "this host has neither curl nor wget: download the program on another one and give --binary FILE"
		fi
	done
	want=$(cut -c 1-64 "$work/$name.sha256" | head -n 1)
	is=$(sha256sum "$work/$name" | cut -c 1-64)
	[ "$want" = "$is" ] || die "${BALSA_URL%/}/$name does not have the checksum of $name.sha256: it is not installed"
	binary=$work/$name
}

changed='' # what a running balsa would have to be restarted for
lay_binary() {
	if cmp -s "$binary" "$dest$bin"; then
		return
	fi
	changed=yes
	say "program: $bin"
	[ -z "$dry" ] || return 0
	mkdir -p "$dest${bin%/*}"
	# The new program gets its name by a rename: a process that starts now runs the
	# old or the new program, and running processes keep the old one.
	next=$dest${bin%/*}/.balsa.$$
	cp "$binary" "$next" || {
		rm -f "$next"
		die "the program cannot be written to ${bin%/*}"
	}
	chmod 0755 "$next"
	if [ -z "$dest" ] && ! "$next" version >/dev/null 2>&1; then
		rm -f "$next"
		die "$binary does not run here, or is not balsa"
	fi
	mv -f "$next" "$dest$bin"
}

# ---- the host

check_host() {
	[ "$(id -u)" = 0 ] || die "root is needed (run it with sudo)"
	[ "$(uname -s)" = Linux ] || die "this is $(uname -s); Balsa runs on Linux"
	case $(uname -m) in x86_64 | aarch64) ;; *) fault "this machine is $(uname -m); Balsa runs on x86-64 and arm64" ;; esac
	[ -d /run/systemd/system ] || [ -n "$no_start" ] || fault "systemd does not run here: install with --no-start and start \`balsa $role --config=$config_yaml\` by your own service manager"
	check_kernel
	check_rivals
	check_ports
	check_room
	check_clock
}

has_module() {
	[ -d "/sys/module/$1" ] || grep -q "/$1\.ko" "/lib/modules/$(uname -r)/modules.builtin" 2>/dev/null || modprobe -q "$1" 2>/dev/null
}

check_kernel() {
	modprobe -q overlay 2>/dev/null || true
	grep -qw overlay /proc/filesystems || fault "the kernel has no overlay file system (CONFIG_OVERLAY_FS), which container images need"
	grep -qw -e cgroup2 -e cgroup /proc/filesystems || fault "the kernel has no control groups (CONFIG_CGROUPS), which resource limits need"
	grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null || [ -d /sys/fs/cgroup/memory ] ||
		fault "the memory controller of control groups is off: boot with cgroup_enable=memory"
	[ -e /etc/hosts ] || fault "this host has no /etc/hosts, which pods get a copy of: echo 127.0.0.1 localhost >/etc/hosts"
	[ -e /proc/self/ns/net ] || fault "the kernel has no network namespaces (CONFIG_NET_NS), which pods need"
	# A feature that is built into the kernel has no module. It is missing only when
	# modprobe fails, on a kernel with modules.
	if [ -d "/lib/modules/$(uname -r)" ]; then
		has_module nf_tables || fault "the kernel has no nf_tables (CONFIG_NF_TABLES), which Services need"
		has_module bridge || fault "the kernel has no bridge (CONFIG_BRIDGE), which pods need"
		has_module veth || fault "the kernel has no veth (CONFIG_VETH), which pods need"
		has_module br_netfilter || warn "the kernel has no br_netfilter (CONFIG_BRIDGE_NETFILTER): pods of one node may not reach each other through a Service"
		has_module vxlan || warn "the kernel has no vxlan (CONFIG_VXLAN): pods cannot reach those of other nodes through a tunnel"
	fi
}

# installed reports that Balsa is installed: then Balsa itself may use the ports.
installed() { [ -e "$units/balsa-server.service" ] || [ -e "$units/balsa-agent.service" ]; }

check_rivals() {
	[ -d /run/systemd/system ] || return 0
	for unit in k3s k3s-agent k0scontroller k0sworker rke2-server rke2-agent kubelet snap.microk8s.daemon-kubelite; do
		! systemctl is-active --quiet "$unit" 2>/dev/null || fault "$unit runs here: two node agents fight over the same ports, networks and control groups; remove one"
	done
	! systemctl is-active --quiet etcd 2>/dev/null || warn "etcd runs here; Balsa keeps its own store and does not need it"
	for unit in ufw firewalld; do
		! systemctl is-active --quiet "$unit" 2>/dev/null ||
			if [ "$role" = server ]; then
				warn "$unit runs here: let the other machines of the cluster reach TCP $(setting port 6443) and $(setting kubelet-port 10250), and the other servers TCP and UDP $(setting gossip-port 7946)"
			else
				warn "$unit runs here: let the servers of the cluster reach TCP $(setting kubelet-port 10250)"
			fi
	done
}

# taken PROTOCOL PORT reports that a program listens on the port.
taken() {
	hex=$(printf '%04X' "$2" 2>/dev/null) || die "port $2 is no number"
	state=0A
	[ "$1" = tcp ] || state=07
	cat "/proc/net/$1" "/proc/net/${1}6" 2>/dev/null | awk -v port=":$hex\$" -v state="$state" '$4 == state && $2 ~ port { found = 1 } END { exit !found }'
}

check_ports() {
	! installed || return 0
	ports="tcp:kubelet-port:10250"
	if [ "$role" = server ]; then
		ports="tcp:port:6443 $ports tcp:gossip-port:7946 udp:gossip-port:7946"
	else
		ports="$ports tcp:local-api-port:6444"
	fi
	for entry in $ports; do
		protocol=${entry%%:*} name=${entry#*:}
		port=$(setting "${name%%:*}" "${name#*:}")
		[ "$port" = 0 ] || ! taken "$protocol" "$port" || fault "$protocol port $port is taken by another program: stop that, or choose another with --${name%%:*}"
	done
}

check_room() {
	memory=$(awk '$1 == "MemTotal:" { print int($2 / 1024) }' /proc/meminfo)
	[ "$memory" -ge 900 ] || warn "this machine has $memory MiB of memory; a $role wants 1 GiB or more"
	dir=$(setting data-dir /var/lib/balsa)
	while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
	free=$(df -Pm "$dir" | awk 'NR == 2 { print $4 }')
	[ "$free" -ge 500 ] || fault "$dir has $free MiB free; Balsa wants 500 and more for images and data"
	[ "$free" -ge 5000 ] || warn "$dir has $free MiB free; images soon need more"
}

check_clock() {
	command -v timedatectl >/dev/null 2>&1 && [ -d /run/systemd/system ] || return 0
	[ "$(timedatectl show -p NTPSynchronized --value 2>/dev/null)" = yes ] ||
		warn "this machine's clock is not synchronized: certificates are checked by the clock; install chrony or systemd-timesyncd"
}

# raise_limits raises kernel limits that many pods on one node reach. The file keeps the
# old values, which --uninstall restores.
raise_limits() {
	lines=''
	for want in fs.inotify.max_user_instances=8192 fs.inotify.max_user_watches=524288 kernel.pid_max=131072 vm.max_map_count=262144; do
		key=${want%%=*} least=${want#*=}
		file=/proc/sys/$(printf '%s' "$key" | tr . /)
		[ -r "$file" ] || continue
		is=$(cat "$file")
		[ "$is" -lt "$least" ] 2>/dev/null || continue
		say "raising $key from $is to $least ($sysctls)"
		lines="$lines# was $key=$is$newline$key=$least$newline"
		[ -n "$dry" ] || printf '%s' "$least" >"$file" 2>/dev/null || warn "$key cannot be raised here"
	done
	[ -n "$lines" ] && [ -z "$dry" ] || return 0
	[ -e "$sysctls" ] || printf '# Balsa: limits for many pods on one node.\n' >"$sysctls"
	printf '%s' "$lines" >>"$sysctls"
}

# ---- settings and units

# known_flags refuses names that balsa would refuse at its start.
known_flags() {
	[ -n "$flags" ] && [ -z "$dest" ] || return 0
	help=$("$binary" "$role" --help 2>/dev/null) || return 0 # said when it is laid
	names=$(printf '%s' "$flags" | sed 's/=.*//')
	for name in $names; do
		printf '%s\n' "$help" | grep -q -e "^ *--$name " -e ", --$name " || die "--$name is neither a flag of install.sh nor of \`balsa $role\`"
	done
}

# lay FILE MODE writes standard input to the file, and sets changed when the file was different.
lay() {
	target=$dest$1
	cat >"$work/new"
	if cmp -s "$work/new" "$target"; then
		return
	fi
	changed=yes
	say "file: $1"
	[ -z "$dry" ] || return 0
	mkdir -p "${target%/*}"
	cp "$work/new" "$target.new"
	chmod "$2" "$target.new"
	mv -f "$target.new" "$target"
}

# with_flag NAME VALUE sets one key of the settings on standard input.
with_flag() {
	quoted=$(printf '%s' "$2" | sed "s/'/''/g")
	awk -v name="$1:" '
		{ mine = index($0, name) == 1 }
		mine { skipping = 1; next }
		skipping && /^([[:space:]]|-)/ { next }
		{ skipping = 0; print }'
	printf "%s: '%s'\n" "$1" "$quoted"
}

lay_settings() {
	if [ -n "$config" ]; then
		cat "$config"
	elif [ -e "$dest$config_yaml" ]; then
		cat "$dest$config_yaml"
	else
		echo "# The names are the flags of \`balsa $role --help\`."
	fi >"$work/settings"
	entries=$flags
	if [ -n "$join" ]; then
		# --join stays in the settings: a machine that has lost its data then asks for
		# a token, and does not create a new cluster.
		entries="${entries}join=$join${newline}token-file=$join_token$newline"
	fi
	while IFS= read -r entry; do
		[ -n "$entry" ] || continue
		with_flag "${entry%%=*}" "${entry#*=}" <"$work/settings" >"$work/next"
		mv "$work/next" "$work/settings"
	done <<END
$entries
END
	lay "$config_yaml" 0600 <"$work/settings"
	if [ -n "$join" ]; then
		run mkdir -p "$dest$etc"
		[ -n "$dry" ] || (umask 077 && rm -f "$dest$join_token" && printf '%s\n' "$token" >"$dest$join_token")
	fi
}

unit() {
	case $role in
	# Peers take a server that answers late for dead.
	server) what="server: control plane and pods" weight=1000 ;;
	agent) what="agent: a node that runs pods" weight=100 ;;
	esac
	cat <<END
[Unit]
Description=Balsa $what
Documentation=https://github.com/balsahq/balsa
Wants=network-online.target
After=network-online.target time-sync.target
# systemd restarts it without limit: a server that waits for its peers may fail several times.
StartLimitIntervalSec=0

[Service]
Type=notify
# Containers keep running: only the main process is stopped, and the next one finds them.
KillMode=process
Delegate=yes
ExecStartPre=-/sbin/modprobe -a -q overlay br_netfilter nf_tables vxlan
ExecStart=$bin $role --config=$config_yaml
# Ready means joined: the token has done its work.
ExecStartPost=-/bin/rm -f $join_token
# It exits with success only after \`balsa down\` or \`balsa members leave\`.
Restart=on-failure
RestartSec=1
TimeoutStartSec=0
TimeoutStopSec=60
CPUWeight=$weight
IOWeight=$weight
LimitNOFILE=1048576
LimitNPROC=infinity
LimitCORE=infinity
LimitMEMLOCK=infinity
TasksMax=infinity
OOMScoreAdjust=-999

[Install]
WantedBy=multi-user.target
END
}

# ---- starting

service=''
state() { systemctl show -p "$1" --value "$service"; }

start() {
	service=balsa-$role
	if [ -n "$dest" ]; then
		say "laid below $dest; \`systemctl enable balsa-$role\` in the image starts it at boot"
		return
	fi
	if [ -n "$no_start" ]; then
		[ ! -d /run/systemd/system ] || run systemctl daemon-reload
		say "nothing is started (--no-start); later: systemctl enable --now $service"
		return
	fi
	run systemctl daemon-reload
	run systemctl enable --quiet "$service"
	[ -z "$dry" ] || return 0
	if [ "$(state ActiveState)" = active ]; then
		if [ -z "$changed" ]; then
			say "$service runs already, with just this"
			return
		fi
		if [ -z "$restart" ]; then
			say "$service runs on as it was started; when it may stop for a moment: systemctl restart $service"
			return
		fi
		say "restarting $service; its containers go on"
		systemctl restart --no-block "$service"
	else
		say "starting $service"
		systemctl reset-failed "$service" 2>/dev/null || true
		systemctl start --no-block "$service"
	fi
	await
	next_steps
}

# await waits until the service works. It stops a service that has failed three times,
# because an administrator has to fix the reason.
await() {
	fell=0
	tries=$(state NRestarts)
	left=$patience
	while [ "$left" -gt 0 ]; do
		sleep 1
		left=$((left - 1))
		before=$tries tries=$(state NRestarts)
		[ "$tries" -le "$before" ] || fell=$((fell + tries - before))
		if [ "$fell" -ge 3 ] || [ "$(state ActiveState)" = failed ]; then
			reason=$(journalctl -u "$service" -n 50 -o cat --no-pager 2>/dev/null | sed -n 's/^balsa: //p' | tail -n 1)
			systemctl stop "$service"
			die "$service does not start: ${reason:-see journalctl -u $service}"
		fi
		case $(state Job) in
		'' | 0) [ "$(state ActiveState)" != active ] || return 0 ;;
		esac
	done
	die "$service does not work yet after $patience s; it still tries: journalctl -fu $service"
}

next_steps() {
	data_dir=$(setting data-dir /var/lib/balsa)
	more=''
	[ "$data_dir" = /var/lib/balsa ] || more=" --data-dir=$data_dir"
	if [ "$role" = agent ]; then
		say "this node is ready; on a server: balsa kubectl get nodes"
		return
	fi
	cat <<END
balsa: this server is ready (kubeconfig: $data_dir/server/admin.kubeconfig)
  balsa members$more                                              who is in the cluster
  balsa token create$more --role server --print-command           for the next server
  balsa token create$more --role agent --print-command            for a node
On the next machine, with the address and the token that these print:
  install.sh --server --join HOST --token TOKEN
  install.sh --agent --join HOST --token TOKEN
END
}

# ---- the way back

uninstall() {
	if [ -z "$dest" ]; then
		[ "$(id -u)" = 0 ] || die "root is needed (run it with sudo)"
		stop_all
	fi
	for file in "$units/balsa-server.service" "$units/balsa-agent.service" "$join_token" "$bin"; do
		[ ! -e "$dest$file" ] || run rm -f "$dest$file"
	done
	[ ! -d "$dest$etc" ] || [ -z "$purge" ] || run rm -rf "$dest$etc"
	[ ! -e "$dest$sysctls" ] || lower_limits
	if [ -z "$dest" ] && [ -d /run/systemd/system ]; then
		run systemctl daemon-reload
	fi
	[ -z "$dry" ] || return 0
	if [ -n "$purge" ] || [ ! -d "$dest$etc" ]; then
		say "uninstalled"
	else
		say "uninstalled; data and settings stay (--uninstall --purge removes them)"
	fi
}

stop_all() {
	program=$bin
	[ -x "$program" ] || program=${binary:-$here/bin/balsa}
	set -- "--data-dir=$(setting data-dir /var/lib/balsa)" "--run-dir=$(setting run-dir /run/balsa)"
	if [ -n "$purge" ] && [ -e "$units/balsa-server.service" ]; then
		run leave "$program" "$@"
	fi
	for name in balsa-server balsa-agent; do
		if [ ! -d /run/systemd/system ] || [ ! -e "$units/$name.service" ]; then
			continue
		fi
		say "stopping $name"
		run systemctl disable --now --quiet "$name"
		run systemctl reset-failed "$name" 2>/dev/null || true
	done
	set -- "$@" "--cgroup-root=$(setting cgroup-root /kubepods)" "--log-dir=$(setting log-dir /var/log)"
	[ -z "$purge" ] || set -- "$@" --purge
	if [ -x "$program" ]; then
		run "$program" down "$@" || die "not everything stopped; nothing was removed: see above, then run this again"
	elif [ -d "$(setting data-dir /var/lib/balsa)" ]; then
		warn "the program is missing: its containers, links and rules, if any, stay until a reboot"
	fi
}

# leave removes this server from the cluster. The last server has no cluster to leave.
leave() {
	program=$1
	shift
	if [ "$(timeout 20 "$program" members "$@" 2>/dev/null | awk '$3 == "voter" || $3 == "learner" { n++ } END { print n + 0 }')" -lt 2 ]; then
		return
	fi
	timeout 60 "$program" members leave "$@" || warn "the other servers still have this one as a member; run on one of them: balsa members remove $(setting node-name "$(hostname)")"
}

lower_limits() {
	if [ -n "$dry" ]; then
		say "would put back: $(sed -n 's/^# was //p' "$sysctls" | tr '\n' ' ')"
		return
	fi
	[ -n "$dest" ] || sed -n 's/^# was //p' "$sysctls" | while IFS='=' read -r key value; do
		printf '%s' "$value" >"/proc/sys/$(printf '%s' "$key" | tr . /)" 2>/dev/null || warn "$key stays as it is"
	done
	rm -f "$dest$sysctls"
}

parse "$@"
validate
if [ "$action" = uninstall ]; then
	uninstall
	exit 0
fi
if [ -z "$dest" ]; then
	check_host
	[ "$faults" = 0 ] || die "this host is not fit yet ($faults found); nothing was changed"
fi
if [ "$action" = check ]; then
	say "this host is fit for a balsa $role"
	exit 0
fi
find_binary
known_flags
[ -n "$work" ] || work=$(mktemp -d)
if [ -z "$dest" ]; then
	raise_limits
fi
lay_binary
lay_settings
unit | lay "$units/balsa-$role.service" 0644
start
