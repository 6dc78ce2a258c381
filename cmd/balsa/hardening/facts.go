package hardening

import (
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Facts are what Gather found out. A part that could not be asked about has its Err or Missing set.
type Facts struct {
	Servers []Server
	Nodes   []Node

	// Files are the files and directories below this machine's data directory; FilesMissing says why there are none.
	Files        []File
	FilesMissing string

	ClusterRoles        []rbacv1.ClusterRole
	Roles               []rbacv1.Role
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	RoleBindings        []rbacv1.RoleBinding
	Namespaces          []corev1.Namespace
	Pods                []corev1.Pod
	NetworkPolicies     []networkingv1.NetworkPolicy

	// Encrypted says of each resource with stored objects whether all of them are encrypted with the key in use;
	// EncryptionErr says why that is not known, or that the servers encrypt nothing.
	Encrypted     map[string]bool
	EncryptionErr string
}

// Server is one server of the cluster, asked at its own address.
type Server struct {
	Name  string // host:port
	Err   string // why it could not be asked; the rest is empty then
	Flags map[string]string

	OldTLS      string // the oldest version below TLS 1.2 that it accepted, or ""
	WeakCiphers []string
	// Anonymous are requests without credentials that the server should have refused and answered: method and path.
	Anonymous []string
	// Profiles says that /debug/pprof/ answers.
	Profiles bool
}

// Node is one node's own API.
type Node struct {
	Name   string
	Err    string         // why its settings could not be asked for; Config is nil then
	Config map[string]any // the KubeletConfiguration that it runs with

	// Reached says whether the ports of the node could be tried from this machine.
	Reached      bool
	Anonymous    []string // requests without credentials that its API answered
	ReadOnlyPort bool     // port 10255 answers
	OldTLS       string
	WeakCiphers  []string
}

// File is one file or directory.
type File struct {
	Path string // below the data directory
	Mode fs.FileMode
	UID  uint32
}

// flag returns a server's setting, and whether the server has it.
func (s *Server) flag(name string) (string, bool) {
	v, ok := s.Flags[name]
	return v, ok
}

// list splits a setting of several words, as pflag prints them.
func (s *Server) list(name string) []string {
	v, _ := s.flag(name)
	return strings.FieldsFunc(v, func(r rune) bool { return strings.ContainsRune("[], ", r) })
}

// setting returns a value of a node's KubeletConfiguration by its path.
func (n *Node) setting(path ...string) any {
	var at any = n.Config
	for _, name := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[name]
	}
	return at
}

// system says whether a namespace is the cluster's own.
func system(namespace string) bool {
	return slices.Contains([]string{"kube-system", "kube-public", "kube-node-lease"}, namespace)
}

// DemoLabel is on the pods of the Deployment with which `balsa up` shows that a new cluster works. They are not people's.
const DemoLabel = "balsa.dev/demo"
