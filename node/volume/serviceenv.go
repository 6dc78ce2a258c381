package volume

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServiceName is the Service in namespace default whose variables every container gets, whatever
// enableServiceLinks says: in-cluster clients find the API server by them.
const apiServiceName = "kubernetes"

// serviceVariables returns the variables by which a container in namespace ns finds Services: NAME_SERVICE_HOST,
// NAME_SERVICE_PORT and those that docker links once defined. They come in the order of services.
func serviceVariables(services []*v1.Service, ns string, links bool) *variables {
	chosen := map[string]*v1.Service{}
	var names []string
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == v1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		_, taken := chosen[s.Name]
		switch {
		case s.Namespace == metav1.NamespaceDefault && s.Name == apiServiceName:
			if taken {
				continue
			}
		case s.Namespace == ns && links:
		default:
			continue
		}
		if !taken {
			names = append(names, s.Name)
		}
		chosen[s.Name] = s
	}
	vars := newVariables()
	for _, name := range names {
		addServiceVariables(vars, chosen[name])
	}
	return vars
}

func addServiceVariables(vars *variables, s *v1.Service) {
	prefix, ip := variableName(s.Name), s.Spec.ClusterIP
	vars.set(prefix+"_SERVICE_HOST", ip)
	vars.set(prefix+"_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			vars.set(prefix+"_SERVICE_PORT_"+variableName(p.Name), strconv.Itoa(int(p.Port)))
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := string(p.Protocol)
		if protocol == "" {
			protocol = string(v1.ProtocolTCP)
		}
		port, lower := strconv.Itoa(int(p.Port)), strings.ToLower(protocol)
		url := lower + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			vars.set(prefix+"_PORT", url)
		}
		one := fmt.Sprintf("%s_PORT_%s_%s", prefix, port, strings.ToUpper(protocol))
		vars.set(one, url)
		vars.set(one+"_PROTO", lower)
		vars.set(one+"_PORT", port)
		vars.set(one+"_ADDR", ip)
	}
}

func variableName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

// variables is a list of environment variables that keeps the order in which names first came.
type variables struct {
	names  []string
	values map[string]string
}

func newVariables() *variables { return &variables{values: map[string]string{}} }

func (v *variables) set(name, value string) {
	if _, ok := v.values[name]; !ok {
		v.names = append(v.names, name)
	}
	v.values[name] = value
}

func (v *variables) get(name string) (string, bool) {
	value, ok := v.values[name]
	return value, ok
}
