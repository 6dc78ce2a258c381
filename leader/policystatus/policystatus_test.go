package policystatus

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	v1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/balsahq/balsa/leader/workqueue"
	"github.com/balsahq/balsa/leader/workqueue/workqueuetest"
)

var widgets = schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}

// schemas know widgets, whose size is a number. The first question fails.
type schemas struct{ asked atomic.Int32 }

func (s *schemas) ResolveSchema(kind schema.GroupVersionKind) (*spec.Schema, error) {
	if s.asked.Add(1) == 1 {
		return nil, errors.New("the API does not answer")
	}
	if kind != widgets {
		return nil, resolver.ErrSchemaNotFound
	}
	return &spec.Schema{SchemaProps: spec.SchemaProps{Type: []string{"object"}, Properties: map[string]spec.Schema{"size": *spec.Int64Property()}}}, nil
}

func policy(name, expression string) *v1.ValidatingAdmissionPolicy {
	return &v1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}, Spec: v1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &v1.MatchResources{ResourceRules: []v1.NamedRuleWithOperations{{RuleWithOperations: v1.RuleWithOperations{
			Rule: v1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"v1"}, Resources: []string{"widgets"}}}}}},
		Validations: []v1.Validation{{Expression: expression}},
	}}
}

func TestPoliciesAreCheckedByTheTypesTheyAreAbout(t *testing.T) {
	client := fake.NewClientset(policy("good", "object.size > 1"), policy("confused", "object.size > '1'"))
	known := &schemas{}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{widgets.GroupVersion()})
	mapper.Add(widgets, meta.RESTScopeNamespace)
	workqueuetest.Start(t, client, func(env workqueue.Env) (workqueue.Runner, error) {
		return newController(env, 1, func() (resolver.SchemaResolver, meta.RESTMapper) { return known, mapper })
	})
	checked := func(ctx context.Context, name string, generation int64) *v1.TypeChecking {
		var status v1.ValidatingAdmissionPolicyStatus
		workqueuetest.Eventually(t, name+" is checked", func(context.Context) (bool, error) {
			p, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
			if err == nil {
				status = p.Status
			}
			return status.ObservedGeneration == generation, err
		})
		if status.TypeChecking == nil { // the fake API takes an empty struct away that was not
			return &v1.TypeChecking{}
		}
		return status.TypeChecking
	}
	if got := checked(t.Context(), "good", 1); len(got.ExpressionWarnings) != 0 {
		t.Errorf("good: %+v", got)
	}
	got := checked(t.Context(), "confused", 1)
	if len(got.ExpressionWarnings) != 1 || got.ExpressionWarnings[0].FieldRef != "spec.validations[0].expression" ||
		!strings.Contains(got.ExpressionWarnings[0].Warning, "found no matching overload for '_>_' applied to '(int, string)'") {
		t.Errorf("confused: %+v", got)
	}
	mended, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), "confused", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mended.Spec.Validations[0].Expression, mended.Generation = "object.size > 2", 2
	if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Update(t.Context(), mended, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := checked(t.Context(), "confused", 2); len(got.ExpressionWarnings) != 0 {
		t.Errorf("mended: %+v", got)
	}
}
