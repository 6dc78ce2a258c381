package kinds

// table is every stored kind. Strategies that ask more than the object's own text take it from the Set.
func (s *Set) table() []Row {
	var rows []Row
	for _, part := range [][]Row{
		coreRows(), appsRows(), batchRows(), policyRows(), rbacRows(), networkRows(), storageRows(),
		clusterRows(), aggregationRows(), s.admissionRows(), s.deviceRows(),
	} {
		rows = append(rows, part...)
	}
	for i := range rows {
		if len(rows[i].Versions) == 0 {
			rows[i].Versions = []string{"v1"}
		}
	}
	return rows
}
