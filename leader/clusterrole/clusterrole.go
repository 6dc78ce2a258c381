// Package clusterrole keeps the rules of aggregated ClusterRoles.
//
// It watches ClusterRoles and writes the rules of those with an aggregation rule. It never touches another ClusterRole,
// nor a label or a selector.
//
// Goroutines: one work loop.
package clusterrole

import (
	"context"
	"errors"
	"sort"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/balsahq/balsa/leader/workqueue"
)

type controller struct {
	env   workqueue.Env
	roles rbaclisters.ClusterRoleLister
	loop  *workqueue.Loop[string]
}

// New returns the controller of aggregated ClusterRoles.
func New(env workqueue.Env, workers int) (workqueue.Runner, error) {
	roles := env.Informers.Rbac().V1().ClusterRoles()
	c := &controller{env: env, roles: roles.Lister()}
	c.loop = workqueue.NewLoop(env, workers, c.reconcile)
	return c.loop, errors.Join(workqueue.Watch(c.loop, roles.Informer(), c.changed))
}

// changed queues every aggregated role the change may matter to.
func (c *controller) changed(old, now *rbacv1.ClusterRole) {
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return // a lister over a cache does not fail
	}
	for _, r := range all {
		if r.AggregationRule == nil {
			continue
		}
		for _, v := range workqueue.Either(old, now) {
			if v.Name == r.Name || selects(r, v) {
				c.loop.Add(r.Name)
			}
		}
	}
}

func selects(aggregate, role *rbacv1.ClusterRole) bool {
	for i := range aggregate.AggregationRule.ClusterRoleSelectors {
		s, err := metav1.LabelSelectorAsSelector(&aggregate.AggregationRule.ClusterRoleSelectors[i])
		if err == nil && s.Matches(labels.Set(role.Labels)) {
			return true
		}
	}
	return false
}

func (c *controller) reconcile(ctx context.Context, name string) error {
	role, err := c.roles.Get(name)
	if apierrors.IsNotFound(err) || err == nil && role.AggregationRule == nil {
		return nil
	}
	if err != nil {
		return err
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return err
	}
	rules := aggregated(role, all)
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return nil
	}
	role = role.DeepCopy()
	role.Rules = rules
	_, err = c.env.Client.RbacV1().ClusterRoles().Update(ctx, role, metav1.UpdateOptions{})
	return err
}

// aggregated joins the rules of every role selected, selector by selector, in the order of names, each rule once.
func aggregated(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	sorted := append([]*rbacv1.ClusterRole(nil), all...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Name < sorted[j].Name })
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue // validation forbids it
		}
		for _, r := range sorted {
			if r.Name == role.Name || !selector.Matches(labels.Set(r.Labels)) {
				continue
			}
			for _, rule := range r.Rules {
				if !contains(rules, rule) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

func contains(rules []rbacv1.PolicyRule, rule rbacv1.PolicyRule) bool {
	for i := range rules {
		if equality.Semantic.DeepEqual(rules[i], rule) {
			return true
		}
	}
	return false
}
