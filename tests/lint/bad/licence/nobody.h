int nobody(void);
