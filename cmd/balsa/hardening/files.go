package hardening

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// serverFiles returns section 1.1. The benchmark names the files of kubeadm; Balsa has all files below the data directory.
func serverFiles() []Control {
	mend := func(kind, mode string) string {
		return "find DATA-DIR/server -type " + kind + " -exec chmod " + mode + " {} +"
	}
	return []Control{
		{"1.1.1", "Files of servers (keys, tokens, settings, kubeconfig) are readable by root alone", filesOf("server/", func(f File) string { return tooOpen(f, 0o077) }), mend("f", "600")},
		{"1.1.2", "Files of servers belong to root", filesOf("server/", notRoot), "chown -R root:root DATA-DIR/server"},
		never("1.1.9", "Files of the network plug-in are 600", "the network is inside the program and has no files; see 4.1 for those of another plug-in"),
		{"1.1.11", "Directories of the store are 700", filesOf("server", func(f File) string {
			if f.Mode.IsDir() && f.Mode.Perm()&0o077 != 0 {
				return fmt.Sprintf("%s is %03o", f.Path, f.Mode.Perm())
			}
			return ""
		}), mend("d", "700")},
		never("1.1.12", "The store's directory belongs to etcd:etcd", "there is no etcd; the store belongs to root (1.1.2)"),
		{"1.1.13", "The administrator's kubeconfig is 600 and root's", filesOf("server/admin.kubeconfig", func(f File) string { return first(tooOpen(f, 0o177), notRoot(f)) }), "chmod 600 DATA-DIR/server/admin.kubeconfig"},
		never("1.1.15", "Kubeconfigs of scheduler and controllers are 600", "they are inside the server and have no files"),
		{"1.1.20", "Certificates are 600", filesOf("server/", func(f File) string {
			if ext := path.Ext(f.Path); ext == ".crt" || ext == ".pem" {
				return tooOpen(f, 0o177)
			}
			return ""
		}), mend("f", "600")},
		{"1.1.21", "Private keys are 600", filesOf("server/", func(f File) string {
			if strings.HasSuffix(f.Path, ".key") {
				return tooOpen(f, 0o177)
			}
			return ""
		}), mend("f", "600")},
	}
}

// nodeFiles returns section 4.1.
func nodeFiles() []Control {
	return []Control{
		never("4.1.1", "The kubelet's service file is 600", "install.sh writes the service's file, which holds no secrets and belongs to root"),
		never("4.1.3", "kube-proxy's kubeconfig is 600", "there is no kube-proxy; Services are made by the node itself"),
		{"4.1.5", "The node's certificates and keys are readable by root alone", filesOf("agent/", func(f File) string {
			if ext := path.Ext(f.Path); ext == ".crt" || ext == ".key" || ext == ".pem" || strings.HasSuffix(f.Path, "kubeconfig") {
				return first(tooOpen(f, 0o177), notRoot(f))
			}
			return ""
		}), "chmod 600 the named files"},
		never("4.1.9", "The kubelet's configuration file is 600", "the node has no such file; install.sh writes /etc/balsa/config.yaml with mode 600, and it holds no secrets"),
	}
}

// filesOf judges the files of this machine whose path starts with prefix.
func filesOf(prefix string, bad func(File) string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		if f.FilesMissing != "" {
			return notApplicable("%s", f.FilesMissing)
		}
		var some []File
		for _, file := range f.Files {
			if strings.HasPrefix(file.Path, prefix) {
				some = append(some, file)
			}
		}
		return all(some, notApplicable("this machine has none"), fmt.Sprintf("%d files checked on this machine", len(some)), bad)
	}
}

// tooOpen returns a text for a regular file whose mode has one of the bits.
func tooOpen(f File, bits fs.FileMode) string {
	if f.Mode.IsRegular() && f.Mode.Perm()&bits != 0 {
		return fmt.Sprintf("%s is %03o", f.Path, f.Mode.Perm())
	}
	return ""
}

func notRoot(f File) string {
	if f.UID != 0 {
		return fmt.Sprintf("%s belongs to user %d", f.Path, f.UID)
	}
	return ""
}

func first(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}
