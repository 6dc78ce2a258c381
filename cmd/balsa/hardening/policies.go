package hardening

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// policies returns section 5: the objects that users create. The cluster's own namespaces, and the roles that every cluster
// has, are not judged. The benchmark's other controls of this section (a namespace for each tenant, images from trusted
// registries) cannot be checked on a cluster.
func policies() []Control {
	roles := "balsa kubectl get clusterroles,roles -A; give the named subjects a narrower role"
	pods := "balsa kubectl label namespace NAME pod-security.kubernetes.io/enforce=restricted, and change the named pods"
	return []Control{
		{"5.1.1", "Only administrators have cluster-admin", judgeClusterAdmins, "balsa kubectl delete clusterrolebinding NAME"},
		{"5.1.2", "Few may read Secrets", grantees([]string{"get", "list", "watch"}, "", "secrets"), roles},
		{"5.1.3", "No wildcards in roles", judgeWildcards, roles},
		{"5.1.4", "Few may create pods", grantees([]string{"create"}, "", "pods"), roles},
		{"5.1.5", "Default service accounts have no rights", judgeDefaultAccounts, "create service accounts for pods, and bind those"},
		{"5.1.7", "The group system:masters is not bound", judgeMasters, "balsa kubectl delete clusterrolebinding NAME"},
		{"5.1.8", "Few may bind, impersonate or escalate", func(f *Facts) Verdict {
			return merge(grantees([]string{"impersonate"}, "", "users", "groups", "serviceaccounts")(f), grantees([]string{"bind", "escalate"}, rbacv1.GroupName, "roles", "clusterroles")(f))
		}, roles},
		{"5.1.9", "Few may create PersistentVolumes", grantees([]string{"create"}, "", "persistentvolumes"), roles},
		{"5.1.10", "Few may use nodes by proxy", grantees([]string{"get", "create"}, "", "nodes/proxy"), roles},
		{"5.1.11", "Few may approve requests for certificates", grantees([]string{"update", "patch"}, "certificates.k8s.io", "certificatesigningrequests/approval"), roles},
		{"5.1.12", "Few may change admission webhooks", grantees([]string{"create", "update", "patch"}, "admissionregistration.k8s.io", "validatingwebhookconfigurations", "mutatingwebhookconfigurations"), roles},
		{"5.1.13", "Few may make tokens of service accounts", grantees([]string{"create"}, "", "serviceaccounts/token"), roles},
		{"5.2.1", "Pod Security is enforced where people run pods", judgePodSecurity, "balsa kubectl label namespace NAME pod-security.kubernetes.io/enforce=baseline"},
		{"5.2.2", "No privileged containers", eachPod("none", func(p *corev1.Pod) string {
			return containerFault(p, "privileged", func(c *corev1.Container) bool {
				return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
			})
		}), pods},
		{"5.2.3", "No pods in the host's process namespace", eachPod("none", hostFault("hostPID", func(p *corev1.Pod) bool { return p.Spec.HostPID })), pods},
		{"5.2.4", "No pods in the host's IPC namespace", eachPod("none", hostFault("hostIPC", func(p *corev1.Pod) bool { return p.Spec.HostIPC })), pods},
		{"5.2.5", "No pods in the host's network", eachPod("none", hostFault("hostNetwork", func(p *corev1.Pod) bool { return p.Spec.HostNetwork })), pods},
		{"5.2.9", "No containers with added capabilities", eachPod("none", func(p *corev1.Pod) string {
			return containerFault(p, "added capabilities", func(c *corev1.Container) bool {
				return c.SecurityContext != nil && c.SecurityContext.Capabilities != nil && slices.ContainsFunc(c.SecurityContext.Capabilities.Add, func(name corev1.Capability) bool { return name != "NET_BIND_SERVICE" })
			})
		}), pods},
		{"5.2.12", "No volumes of the host", eachPod("none", func(p *corev1.Pod) string {
			for _, v := range p.Spec.Volumes {
				if v.HostPath != nil {
					return p.Namespace + "/" + p.Name + ": hostPath " + v.HostPath.Path
				}
			}
			return ""
		}), pods},
		{"5.2.13", "No ports of the host", eachPod("none", func(p *corev1.Pod) string {
			return containerFault(p, "hostPort", func(c *corev1.Container) bool {
				return slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.HostPort > 0 })
			})
		}), pods},
		never("5.3.1", "The network plug-in knows NetworkPolicies", "nodes enforce NetworkPolicies themselves; with --network-plugin=cni the plug-in has to"),
		{"5.3.2", "Namespaces in which people run pods have NetworkPolicies", judgeNetworkPolicies, "balsa kubectl apply a NetworkPolicy that selects all pods ({}) into the named namespaces"},
		{"5.4.1", "Secrets are files, not environment variables", eachPod("none in the environment", func(p *corev1.Pod) string {
			return containerFault(p, "Secrets in its environment", func(c *corev1.Container) bool {
				return slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil }) ||
					slices.ContainsFunc(c.EnvFrom, func(e corev1.EnvFromSource) bool { return e.SecretRef != nil })
			})
		}), "mount the Secret as a volume in the named pods"},
		{"5.7.4", "The namespace default is not used", eachPod("no pods in it", func(p *corev1.Pod) string {
			if p.Namespace == corev1.NamespaceDefault {
				return p.Name
			}
			return ""
		}), "create namespaces, and the named pods in them"},
	}
}

// eachPod judges all pods except the cluster's own and those of the demonstration.
func eachPod(good string, bad func(*corev1.Pod) string) func(*Facts) Verdict {
	return func(f *Facts) Verdict {
		var theirs []corev1.Pod
		for i := range f.Pods {
			if p := &f.Pods[i]; !system(p.Namespace) && p.Labels[DemoLabel] == "" {
				theirs = append(theirs, *p)
			}
		}
		return all(theirs, pass("no pods beside the cluster's own"), good, func(p corev1.Pod) string { return bad(&p) })
	}
}

func hostFault(what string, has func(*corev1.Pod) bool) func(*corev1.Pod) string {
	return func(p *corev1.Pod) string {
		if has(p) {
			return p.Namespace + "/" + p.Name + ": " + what
		}
		return ""
	}
}

func containerFault(p *corev1.Pod, what string, has func(*corev1.Container) bool) string {
	for _, c := range slices.Concat(p.Spec.InitContainers, p.Spec.Containers) {
		if has(&c) {
			return fmt.Sprintf("%s/%s: container %s has %s", p.Namespace, p.Name, c.Name, what)
		}
	}
	return ""
}

// builtIn reports whether every cluster has the role or binding.
func builtIn(labels map[string]string, name string) bool {
	return labels["kubernetes.io/bootstrapping"] == "rbac-defaults" || strings.HasPrefix(name, "system:")
}

func judgeClusterAdmins(f *Facts) Verdict {
	return all(f.ClusterRoleBindings, fail("there are no bindings at all"), "only by the cluster's own binding", func(b rbacv1.ClusterRoleBinding) string {
		if b.RoleRef.Name == "cluster-admin" && !builtIn(b.Labels, b.Name) {
			return "ClusterRoleBinding " + b.Name
		}
		return ""
	})
}

func judgeMasters(f *Facts) Verdict {
	return all(f.ClusterRoleBindings, fail("there are no bindings at all"), "by no binding but the cluster's own", func(b rbacv1.ClusterRoleBinding) string {
		if !builtIn(b.Labels, b.Name) && slices.ContainsFunc(b.Subjects, func(s rbacv1.Subject) bool { return s.Kind == rbacv1.GroupKind && s.Name == "system:masters" }) {
			return "ClusterRoleBinding " + b.Name
		}
		return ""
	})
}

func judgeWildcards(f *Facts) Verdict {
	return all(boundRules(f), pass("no roles beside the cluster's own are bound"), "none", func(r boundRule) string {
		if slices.Contains(r.rule.Verbs, "*") || slices.Contains(r.rule.Resources, "*") {
			return r.role
		}
		return ""
	})
}

// boundRule is one rule of a role that is bound by something other than the cluster's own bindings.
type boundRule struct {
	role string
	rule rbacv1.PolicyRule
}

func boundRules(f *Facts) []boundRule {
	rules := map[string][]rbacv1.PolicyRule{}
	for i := range f.ClusterRoles {
		if r := &f.ClusterRoles[i]; !builtIn(r.Labels, r.Name) {
			rules["ClusterRole "+r.Name] = r.Rules
		}
	}
	for i := range f.Roles {
		if r := &f.Roles[i]; !builtIn(r.Labels, r.Name) {
			rules["Role "+r.Namespace+"/"+r.Name] = r.Rules
		}
	}
	var used []string
	for i := range f.ClusterRoleBindings {
		used = append(used, "ClusterRole "+f.ClusterRoleBindings[i].RoleRef.Name)
	}
	for i := range f.RoleBindings {
		b := &f.RoleBindings[i]
		if b.RoleRef.Kind == "ClusterRole" {
			used = append(used, "ClusterRole "+b.RoleRef.Name)
		} else {
			used = append(used, "Role "+b.Namespace+"/"+b.RoleRef.Name)
		}
	}
	slices.Sort(used)
	var out []boundRule
	for _, role := range slices.Compact(used) {
		for _, rule := range rules[role] {
			out = append(out, boundRule{role, rule})
		}
	}
	return out
}

// grantees fails when a bound role, other than the cluster's own, allows one of the verbs on one of the resources, even if
// only for one name: the administrator has to check the subjects.
func grantees(verbs []string, group string, resources ...string) func(*Facts) Verdict {
	has := func(have []string, want ...string) bool {
		return slices.Contains(have, "*") || slices.ContainsFunc(want, func(w string) bool { return slices.Contains(have, w) })
	}
	return func(f *Facts) Verdict {
		seen := map[string]bool{}
		return all(boundRules(f), pass("no roles beside the cluster's own are bound"), "no role beside the cluster's own gives it", func(r boundRule) string {
			if len(r.rule.ResourceNames) > 0 || !has(r.rule.APIGroups, group) || !has(r.rule.Verbs, verbs...) || !has(r.rule.Resources, resources...) || seen[r.role] {
				return ""
			}
			seen[r.role] = true
			return r.role
		})
	}
}

// merge returns a failure when one of the verdicts is a failure.
func merge(verdicts ...Verdict) Verdict {
	for _, v := range verdicts {
		if v.Result == Fail {
			return v
		}
	}
	return verdicts[0]
}

func judgeDefaultAccounts(f *Facts) Verdict {
	named := func(s rbacv1.Subject) bool { return s.Kind == rbacv1.ServiceAccountKind && s.Name == "default" }
	var bad []string
	for i := range f.ClusterRoleBindings {
		if b := &f.ClusterRoleBindings[i]; slices.ContainsFunc(b.Subjects, named) {
			bad = append(bad, "ClusterRoleBinding "+b.Name)
		}
	}
	for i := range f.RoleBindings {
		if b := &f.RoleBindings[i]; slices.ContainsFunc(b.Subjects, named) {
			bad = append(bad, "RoleBinding "+b.Namespace+"/"+b.Name)
		}
	}
	return all(bad, pass("none is bound to a role"), "", func(name string) string { return name })
}

// theirNamespaces returns the namespaces with pods that eachPod judges.
func theirNamespaces(f *Facts) []corev1.Namespace {
	var out []corev1.Namespace
	for i := range f.Namespaces {
		n := &f.Namespaces[i]
		if !system(n.Name) && slices.ContainsFunc(f.Pods, func(p corev1.Pod) bool { return p.Namespace == n.Name && p.Labels[DemoLabel] == "" }) {
			out = append(out, *n)
		}
	}
	return out
}

func judgePodSecurity(f *Facts) Verdict {
	for i := range f.Servers {
		if file, _ := f.Servers[i].flag("admission-control-config-file"); file != "" {
			return notApplicable("defaults are in %s of the servers, which is not read here", file)
		}
	}
	return all(theirNamespaces(f), pass("no pods beside the cluster's own"), "in every namespace with pods", func(n corev1.Namespace) string {
		if level := n.Labels["pod-security.kubernetes.io/enforce"]; level != "baseline" && level != "restricted" {
			return "namespace " + n.Name
		}
		return ""
	})
}

func judgeNetworkPolicies(f *Facts) Verdict {
	return all(theirNamespaces(f), pass("no pods beside the cluster's own"), "in every namespace with pods", func(n corev1.Namespace) string {
		for i := range f.NetworkPolicies {
			if f.NetworkPolicies[i].Namespace == n.Name {
				return ""
			}
		}
		return "namespace " + n.Name
	})
}
