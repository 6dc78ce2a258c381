package hardening

import (
	"io/fs"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// Facts is the result of Gather. A part that could not be read has a reason in its Err or Missing field.
type Facts struct {
	Servers []Server
	Nodes   []Node

	// Files are the files and directories below this machine's data directory; FilesMissing is the reason for none.
	Files        []File
	FilesMissing string

	ClusterRoles        []rbacv1.ClusterRole
	Roles               []rbacv1.Role
	ClusterRoleBindings []rbacv1.ClusterRoleBinding
	RoleBindings        []rbacv1.RoleBinding
	Namespaces          []corev1.Namespace
	Pods                []corev1.Pod
	NetworkPolicies     []networkingv1.NetworkPolicy

	// Encrypted has each resource with stored objects: true when all of them are encrypted with the key in use.
	// EncryptionErr is the reason why that is not known, or says that the servers encrypt nothing.
	Encrypted     map[string]bool
	EncryptionErr string
}

// Server is one server of the cluster, as it answers at its own address.
type Server struct {
	Name  string // host:port
	Err   string // why its settings could not be read; the other fields are empty then
	Flags map[string]string

	OldTLS      string // a version below TLS 1.2 that it accepted, or ""
	WeakCiphers []string
	// Anonymous are the requests without credentials that the server answered instead of refusing them: method and path.
	Anonymous []string
	// Profiles is true when /debug/pprof/ answers.
	Profiles bool
}

// Node is one node, as its kubelet API answers.
type Node struct {
	Name   string
	Err    string         // why its settings could not be read; Config is nil then
	Config map[string]any // the KubeletConfiguration that it runs with

	// Reached is true when this machine could connect to the node's ports.
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

// list returns the values of a setting that is a list, which pflag prints as [a,b].
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

// system reports whether a namespace is one of the cluster's own.
func system(namespace string) bool {
	return slices.Contains([]string{"kube-system", "kube-public", "kube-node-lease"}, namespace)
}

// DemoLabel is the label of the pods with which `balsa up` shows that a new cluster works. They are not checked, as the
// cluster's own pods are not.
const DemoLabel = "balsa.dev/demo"
