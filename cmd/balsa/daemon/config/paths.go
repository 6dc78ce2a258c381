package config

import (
	"log/slog"
	"os"
	"path/filepath"

	noderuntime "github.com/balsahq/balsa/node/runtime"
)

// Paths are the directories of Balsa on this machine. Its methods return the files and directories below them.
type Paths struct {
	DataDir string // files that survive a reboot
	RunDir  string // sockets and process IDs
}

// DefaultPaths returns the directories that $BALSA_DATA_DIR and $BALSA_RUN_DIR name, or /var/lib/balsa and /run/balsa.
func DefaultPaths() Paths {
	return Paths{DataDir: fromEnv("BALSA_DATA_DIR", "/var/lib/balsa"), RunDir: fromEnv("BALSA_RUN_DIR", "/run/balsa")}
}

func fromEnv(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// ServerDir is the directory of a server's identity, keys and objects.
func (p *Paths) ServerDir() string { return filepath.Join(p.DataDir, "server") }

// LocalVolumesDir holds the volumes of the StorageClass balsa-local that are on this machine.
func (p *Paths) LocalVolumesDir() string { return filepath.Join(p.DataDir, "local-volumes") }

// AgentDir is the directory of this machine's node: its identity as an agent, containers, volumes.
func (p *Paths) AgentDir() string { return filepath.Join(p.DataDir, "agent") }

// BinDir is the directory of the programs that run once per pod: runc, its shim, CNI plugins.
func (p *Paths) BinDir() string { return filepath.Join(p.DataDir, "bin") }

// CNIConfDir is the directory of CNI configurations.
func (p *Paths) CNIConfDir() string { return filepath.Join(p.AgentDir(), "cni", "net.d") }

// Kubeconfig is the administrator's kubeconfig.
func (p *Paths) Kubeconfig() string { return filepath.Join(p.ServerDir(), "admin.kubeconfig") }

// StoreDir is the directory of the Raft log and of snapshots of the state.
func (p *Paths) StoreDir() string { return filepath.Join(p.ServerDir(), "raft") }

// ClusterIDFile exists since the store of this server was opened for the first time.
// A server that finds it beside an empty store refuses to start, because the objects
// have been lost.
func (p *Paths) ClusterIDFile() string { return filepath.Join(p.ServerDir(), "cluster-id") }

// LogFile is where a server that `balsa up` started writes its log.
func (p *Paths) LogFile() string { return filepath.Join(p.DataDir, "balsa.log") }

// PIDFile is locked by the process that uses RunDir, and holds its ID.
func (p *Paths) PIDFile() string { return filepath.Join(p.RunDir, "balsa.pid") }

// Runtime returns the configuration of the bundled container runtime.
func (p *Paths) Runtime() noderuntime.Config {
	program, err := os.Executable()
	if err != nil {
		program = os.Args[0]
	}
	return noderuntime.Config{
		DataDir: p.AgentDir(), RunDir: p.RunDir, BinDir: p.BinDir(), CNIConfDir: p.CNIConfDir(),
		Program: program, Logger: slog.Default(),
	}
}
