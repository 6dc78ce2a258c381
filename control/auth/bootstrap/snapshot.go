package bootstrap

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-helpers/auth/rbac/reconciliation"

	"github.com/balsahq/balsa/fault"
)

// snapshot holds every RBAC object at the start of EnsureRBAC, by "namespace/name". It is read-only once made.
type snapshot struct {
	clusterRoles    map[string]*rbacv1.ClusterRole
	roles           map[string]*rbacv1.Role
	clusterBindings map[string]*rbacv1.ClusterRoleBinding
	bindings        map[string]*rbacv1.RoleBinding
}

func readAll(ctx context.Context, client kubernetes.Interface) (*snapshot, error) {
	s := &snapshot{map[string]*rbacv1.ClusterRole{}, map[string]*rbacv1.Role{}, map[string]*rbacv1.ClusterRoleBinding{}, map[string]*rbacv1.RoleBinding{}}
	c, all := client.RbacV1(), metav1.ListOptions{}
	var g errgroup.Group
	g.Go(fault.ContainedErr("control/auth/bootstrap", func() error {
		l, err := c.ClusterRoles().List(ctx, all)
		if err == nil {
			index(s.clusterRoles, l.Items, func(o *rbacv1.ClusterRole) string { return "/" + o.Name })
		}
		return err
	}))
	g.Go(fault.ContainedErr("control/auth/bootstrap", func() error {
		l, err := c.Roles("").List(ctx, all)
		if err == nil {
			index(s.roles, l.Items, func(o *rbacv1.Role) string { return o.Namespace + "/" + o.Name })
		}
		return err
	}))
	g.Go(fault.ContainedErr("control/auth/bootstrap", func() error {
		l, err := c.ClusterRoleBindings().List(ctx, all)
		if err == nil {
			index(s.clusterBindings, l.Items, func(o *rbacv1.ClusterRoleBinding) string { return "/" + o.Name })
		}
		return err
	}))
	g.Go(fault.ContainedErr("control/auth/bootstrap", func() error {
		l, err := c.RoleBindings("").List(ctx, all)
		if err == nil {
			index(s.bindings, l.Items, func(o *rbacv1.RoleBinding) string { return o.Namespace + "/" + o.Name })
		}
		return err
	}))
	if err := g.Wait(); err != nil {
		return nil, fmt.Errorf("bootstrap: list RBAC objects: %w", err)
	}
	return s, nil
}

func index[T any](into map[string]*T, items []T, key func(*T) string) {
	for i := range items {
		into[key(&items[i])] = &items[i]
	}
}

func find[T any](in map[string]*T, namespace, name string) (*T, error) {
	if o := in[namespace+"/"+name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("rbac"), name)
}

// The four types below read the snapshot and write through the client; they implement interfaces of the reconciliation
// library. If another server creates an object after the list, Create fails with AlreadyExists, which ends the
// reconciliation of that object.
type (
	clusterRoles    writer
	roles           writer
	clusterBindings writer
	bindings        writer
	writer          struct {
		ctx    context.Context
		client kubernetes.Interface
		have   *snapshot
	}
)

func (m clusterRoles) Get(_, name string) (reconciliation.RuleOwner, error) {
	o, err := find(m.have.clusterRoles, "", name)
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}, err
}

func (m clusterRoles) Create(in reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := m.client.RbacV1().ClusterRoles().Create(m.ctx, in.(reconciliation.ClusterRoleRuleOwner).ClusterRole, metav1.CreateOptions{})
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}, err
}

func (m clusterRoles) Update(in reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := m.client.RbacV1().ClusterRoles().Update(m.ctx, in.(reconciliation.ClusterRoleRuleOwner).ClusterRole, metav1.UpdateOptions{})
	return reconciliation.ClusterRoleRuleOwner{ClusterRole: o}, err
}

func (m roles) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	o, err := find(m.have.roles, namespace, name)
	return reconciliation.RoleRuleOwner{Role: o}, err
}

func (m roles) Create(in reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := m.client.RbacV1().Roles(in.GetNamespace()).Create(m.ctx, in.(reconciliation.RoleRuleOwner).Role, metav1.CreateOptions{})
	return reconciliation.RoleRuleOwner{Role: o}, err
}

func (m roles) Update(in reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	o, err := m.client.RbacV1().Roles(in.GetNamespace()).Update(m.ctx, in.(reconciliation.RoleRuleOwner).Role, metav1.UpdateOptions{})
	return reconciliation.RoleRuleOwner{Role: o}, err
}

func (m clusterBindings) Get(_, name string) (reconciliation.RoleBinding, error) {
	o, err := find(m.have.clusterBindings, "", name)
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}, err
}

func (m clusterBindings) Delete(_, name string, uid types.UID) error {
	return m.client.RbacV1().ClusterRoleBindings().Delete(m.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func (m clusterBindings) Create(in reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := m.client.RbacV1().ClusterRoleBindings().Create(m.ctx, in.(reconciliation.ClusterRoleBindingAdapter).ClusterRoleBinding, metav1.CreateOptions{})
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}, err
}

func (m clusterBindings) Update(in reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := m.client.RbacV1().ClusterRoleBindings().Update(m.ctx, in.(reconciliation.ClusterRoleBindingAdapter).ClusterRoleBinding, metav1.UpdateOptions{})
	return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: o}, err
}

func (m bindings) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	o, err := find(m.have.bindings, namespace, name)
	return reconciliation.RoleBindingAdapter{RoleBinding: o}, err
}

func (m bindings) Delete(namespace, name string, uid types.UID) error {
	return m.client.RbacV1().RoleBindings(namespace).Delete(m.ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func (m bindings) Create(in reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := m.client.RbacV1().RoleBindings(in.GetNamespace()).Create(m.ctx, in.(reconciliation.RoleBindingAdapter).RoleBinding, metav1.CreateOptions{})
	return reconciliation.RoleBindingAdapter{RoleBinding: o}, err
}

func (m bindings) Update(in reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	o, err := m.client.RbacV1().RoleBindings(in.GetNamespace()).Update(m.ctx, in.(reconciliation.RoleBindingAdapter).RoleBinding, metav1.UpdateOptions{})
	return reconciliation.RoleBindingAdapter{RoleBinding: o}, err
}
