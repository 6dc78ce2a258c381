package quota

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quota "k8s.io/apiserver/pkg/quota/v1"
)

// aliases are the kinds that quotas name without the prefix count/.
var aliases = map[v1.ResourceName]schema.GroupResource{
	v1.ResourceConfigMaps:             {Resource: "configmaps"},
	v1.ResourceQuotas:                 {Resource: "resourcequotas"},
	v1.ResourceReplicationControllers: {Resource: "replicationcontrollers"},
	v1.ResourceSecrets:                {Resource: "secrets"},
}

// special have evaluators of their own, which look at more than the number.
var special = map[schema.GroupResource]bool{
	{Resource: "pods"}: true, {Resource: "services"}: true, {Resource: "persistentvolumeclaims"}: true, deviceClaims: true,
}

// counted lists the kinds whose mere number a quota limits, each with the alias it goes by, if any.
func counted(q *v1.ResourceQuota) map[schema.GroupResource]v1.ResourceName {
	out := map[schema.GroupResource]v1.ResourceName{}
	for name := range q.Spec.Hard {
		if gr, ok := aliases[name]; ok {
			out[gr] = name
			continue
		}
		text, ok := strings.CutPrefix(string(name), "count/")
		if gr := schema.ParseGroupResource(text); ok && !special[gr] {
			alias := v1.ResourceName("")
			for a, of := range aliases {
				if of == gr {
					alias = a
				}
			}
			out[gr] = alias
		}
	}
	return out
}

// statusOf is the status a quota should have, and whether it differs. used is what was found for the names in hard.
func statusOf(q *v1.ResourceQuota, used v1.ResourceList) (v1.ResourceQuotaStatus, bool) {
	names := quota.ResourceNames(q.Spec.Hard)
	all := v1.ResourceList{}
	for k, v := range q.Status.Used { // what could not be found out stays
		all[k] = v
	}
	for k, v := range used {
		all[k] = v
	}
	s := v1.ResourceQuotaStatus{Hard: q.Spec.Hard.DeepCopy(), Used: quota.Mask(all, names)}
	return s, !equality.Semantic.DeepEqual(q.Status.Hard, s.Hard) || !equality.Semantic.DeepEqual(q.Status.Used, s.Used)
}
