package hardening

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/balsahq/balsa/fault"
)

// Source is what Gather reads from.
type Source struct {
	Client kubernetes.Interface
	Rest   *rest.Config // the administrator's; it is used for each server, at the server's own address
	// DataDir is this machine's data directory. Its files are read when it exists and this process runs as root.
	DataDir string
	// Encryption returns true for a resource when all its objects are encrypted as the configuration demands.
	Encryption func(context.Context) (map[string]bool, error)
}

// atOnce bounds how many servers and nodes are probed at the same time.
const atOnce = 16

// Gather reads everything that Judge needs. It returns an error when the API fails; failures of a single server or node are
// in the Facts.
func Gather(ctx context.Context, s Source) (*Facts, error) {
	f := new(Facts)
	if err := s.objects(ctx, f); err != nil {
		return nil, err
	}
	servers, err := s.servers(ctx)
	if err != nil {
		return nil, err
	}
	list, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	f.Servers, f.Nodes = make([]Server, len(servers)), make([]Node, len(list.Items))
	slots := make(chan struct{}, atOnce)
	var asking sync.WaitGroup
	ask := func(one func()) {
		asking.Go(fault.Contained("check", func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			one()
		}))
	}
	for i, address := range servers {
		ask(func() { f.Servers[i] = s.server(ctx, address) })
	}
	for i := range list.Items {
		ask(func() { f.Nodes[i] = s.node(ctx, &list.Items[i]) })
	}
	asking.Wait()
	if f.Encrypted, err = s.Encryption(ctx); err != nil {
		f.EncryptionErr = err.Error()
	}
	f.Files, err = files(s.DataDir)
	if err != nil {
		f.FilesMissing = err.Error()
	}
	return f, nil
}

// objects lists the objects of section 5. It lists all pods, because the benchmark has controls for each pod.
func (s Source) objects(ctx context.Context, f *Facts) error {
	roles, core := s.Client.RbacV1(), s.Client.CoreV1()
	return errors.Join(
		list(ctx, roles.ClusterRoles().List, func(l *rbacv1.ClusterRoleList) { f.ClusterRoles = l.Items }),
		list(ctx, roles.Roles("").List, func(l *rbacv1.RoleList) { f.Roles = l.Items }),
		list(ctx, roles.ClusterRoleBindings().List, func(l *rbacv1.ClusterRoleBindingList) { f.ClusterRoleBindings = l.Items }),
		list(ctx, roles.RoleBindings("").List, func(l *rbacv1.RoleBindingList) { f.RoleBindings = l.Items }),
		list(ctx, core.Namespaces().List, func(l *corev1.NamespaceList) { f.Namespaces = l.Items }),
		list(ctx, core.Pods("").List, func(l *corev1.PodList) { f.Pods = l.Items }),
		list(ctx, s.Client.NetworkingV1().NetworkPolicies("").List, func(l *networkingv1.NetworkPolicyList) { f.NetworkPolicies = l.Items }),
	)
}

func list[L any](ctx context.Context, get func(context.Context, metav1.ListOptions) (L, error), keep func(L)) error {
	l, err := get(ctx, metav1.ListOptions{})
	if err == nil {
		keep(l)
	}
	return err
}

// servers returns the addresses of the API's servers, from the endpoints of the Service kubernetes.
func (s Source) servers(ctx context.Context) ([]string, error) {
	slices, err := s.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"})
	if err != nil {
		return nil, err
	}
	var out []string
	for _, slice := range slices.Items {
		for _, e := range slice.Endpoints {
			for _, p := range slice.Ports {
				if p.Port != nil && len(e.Addresses) > 0 {
					out = append(out, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(*p.Port))))
				}
			}
		}
	}
	return out, nil
}

// files lists the files of the server and of the agent in a data directory. It does not follow links, and skips the
// directories to which pods write. It returns an error when there are no files to check.
func files(dataDir string) ([]File, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root can read the files: run this as root on each server and node")
	}
	var out []File
	for _, part := range []string{"server", "agent"} {
		err := filepath.WalkDir(filepath.Join(dataDir, part), func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed since it was listed
			}
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(dataDir, path)
			if err != nil {
				return err
			}
			if d.IsDir() && strings.Count(rel, "/") == 1 && part == "agent" && !keyDirectory(d.Name()) {
				return fs.SkipDir
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if stat, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode()&fs.ModeSymlink == 0 {
				out = append(out, File{rel, info.Mode(), stat.Uid})
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("cannot read the data directory: %w", err)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s has no server and no agent: run this on each server and node", dataDir)
	}
	return out, nil
}

// keyDirectory reports whether a directory of an agent holds keys. The other ones hold images, volumes and containers' files.
func keyDirectory(name string) bool { return name == "pki" || name == "tls" || name == "keys" }
